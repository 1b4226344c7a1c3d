"""Which files of the driver belong to which of its capabilities.

The names and what they stand for are those of ``NVIDIA_DRIVER_CAPABILITIES``, as libnvidia-container
divides the driver (``src/nvc_info.c``, ``src/options.h``), with the files that nvcdi gives in addition.
``video`` needs the libraries of ``compute``, and ``display`` those of ``graphics``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = [
    "COMPAT32",
    "COMPUTE",
    "CONFIGURATIONS",
    "DEFAULT",
    "DISPLAY",
    "GRAPHICS",
    "NAMES",
    "PROGRAMS",
    "UTILITY",
    "in_capability",
    "of_library",
]

COMPUTE: Final = "compute"
UTILITY: Final = "utility"
VIDEO: Final = "video"
GRAPHICS: Final = "graphics"
DISPLAY: Final = "display"
NGX: Final = "ngx"
COMPAT32: Final = "compat32"

NAMES: Final = (COMPUTE, UTILITY, VIDEO, GRAPHICS, DISPLAY, NGX, COMPAT32)
# What a container gets whose claim does not say: as with NVIDIA's toolkit.
DEFAULT: Final = (COMPUTE, UTILITY)

_NEEDS: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset({name}) for name in NAMES},
    VIDEO: frozenset({VIDEO, COMPUTE}),
    DISPLAY: frozenset({DISPLAY, GRAPHICS}),
}


def _table(**libraries: str) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for capability, names in libraries.items():
        for name in names.split():
            found.setdefault(name, set()).add(capability)
    return {name: frozenset(capabilities) for name, capabilities in found.items()}


_LIBRARIES: Final = _table(
    utility="libnvidia-ml libnvidia-cfg libnvidia-nscq libnvidia-sandboxutils",
    compute="""libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler
        libnvidia-fatbinaryloader libnvidia-allocator libnvidia-compiler libnvidia-pkcs11
        libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-nvvm70 libnvidia-tileiras""",
    video="libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid",
    graphics="""libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr
        libnvidia-rtcore libnvoptix libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia
        libnvidia-glvkspirv libnvidia-cbl libnvidia-present libnvidia-vksc-core libnvidia-vulkan-producer
        libnvidia-egl-gbm libnvidia-egl-wayland libnvidia-egl-wayland2 libnvidia-egl-xcb libnvidia-egl-xlib
        libnvidia-gpucomp libnvidia-allocator libGL libEGL libGLESv1_CM libGLESv2""",
    display="libglxserver_nvidia libnvidia-gtk2 libnvidia-gtk3 libnvidia-wayland-client libnvidia-wfb",
    ngx="libnvidia-ngx",
)

PROGRAMS: Final[Mapping[str, str]] = {
    "nvidia-smi": UTILITY,
    "nvidia-debugdump": UTILITY,
    "nvidia-persistenced": UTILITY,
    "nvidia-imex": UTILITY,
    "nvidia-imex-ctl": UTILITY,
    "nvidia-cuda-mps-control": COMPUTE,
    "nvidia-cuda-mps-server": COMPUTE,
    "nvidia-xconfig": DISPLAY,
}

# Below /etc, /usr/local/share or /usr/share of the driver's root → capability, and where it is put.
CONFIGURATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "OpenCL/vendors/nvidia.icd": (COMPUTE, "/etc"),
    "nvidia/nvoptix.bin": (GRAPHICS, "/usr/share"),
    "glvnd/egl_vendor.d/10_nvidia.json": (GRAPHICS, "/usr/share"),
    "egl/egl_external_platform.d/15_nvidia_gbm.json": (GRAPHICS, "/usr/share"),
    "egl/egl_external_platform.d/10_nvidia_wayland.json": (GRAPHICS, "/usr/share"),
    "egl/egl_external_platform.d/09_nvidia_wayland2.json": (GRAPHICS, "/usr/share"),
    "egl/egl_external_platform.d/20_nvidia_xcb.json": (GRAPHICS, "/usr/share"),
    "egl/egl_external_platform.d/20_nvidia_xlib.json": (GRAPHICS, "/usr/share"),
    "vulkan/icd.d/nvidia_icd.json": (GRAPHICS, "/etc"),
    "vulkan/icd.d/nvidia_icd.x86_64.json": (GRAPHICS, "/etc"),
    "vulkan/icd.d/nvidia_icd.aarch64.json": (GRAPHICS, "/etc"),
    "vulkan/icd.d/nvidia_layers.json": (GRAPHICS, "/etc"),
    "vulkan/implicit_layer.d/nvidia_layers.json": (GRAPHICS, "/etc"),
    "X11/xorg.conf.d/10-nvidia.conf": (DISPLAY, "/usr/share"),
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": (DISPLAY, "/usr/share"),
}


def of_library(file: str) -> frozenset[str]:
    """Return the capabilities that a library file belongs to; one that is not known counts as ``compute``.

    A driver may come with a library that this table does not know yet, and CUDA may need it.
    """
    return _LIBRARIES.get(file.partition(".so")[0], frozenset({COMPUTE}))


def in_capability(own: Iterable[str], capability: str) -> bool:
    """Return whether what belongs to these capabilities is given with one that is asked for."""
    return not _NEEDS[capability].isdisjoint(own)
