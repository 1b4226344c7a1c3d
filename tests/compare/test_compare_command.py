"""What the command says about what it cannot use."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "which binaries?"),
        (["--bin", "/nowhere"], 2, "kube-scheduler"),
        (["--bin", "/nowhere", "--only", "nothing"], 2, "invalid choice: 'nothing'"),
        (["--help"], 0, "600 pods with claims made before"),
    ],
    ids=["no folder", "an empty folder", "an unknown scenario", "help"],
)
def test_bad_usage_is_explained(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    # Here, since it needs much that other tests do not.
    import compare

    with pytest.raises(SystemExit) as ended:
        compare.main(arguments)
    shown = capsys.readouterr()
    assert ended.value.code == status
    assert text in shown.out + shown.err
