"""The checkpoint: survives newer and older versions of us, notices every flipped byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.meta import PoolName, Uid
from dra_driver.errors import DecodeError, InvalidInput
from dra_driver.preparation import Checkpoint, ClaimState, DeviceSetting, PreparedClaim, PreparedDevice
from dra_driver.preparation.files.checkpoint import _checksum

A, B = Uid("aaaaaaaa-0000"), Uid("bbbbbbbb-0000")


def record(uid: Uid, name: str = "c") -> PreparedClaim:
    device = PreparedDevice(
        requests=("r",), pool=PoolName("p"), device="d", uuid="U", cdi_device_ids=("k/c=d",)
    )
    return PreparedClaim(uid=uid, namespace="ns", name=name, state=ClaimState.COMPLETED, devices=(device,))


def file(payload: str, version: int = 1) -> bytes:
    checksum = _checksum(payload.encode())
    return f'{{"version": {version}, "checksum": "{checksum}", "payload": {payload}}}'.encode()


def test_round_trip() -> None:
    checkpoint = Checkpoint().changed({A: record(A)}).changed({B: record(B)})
    again = Checkpoint.decode(checkpoint.encode())
    assert list(again) == list(checkpoint)
    assert again.get(A) == record(A)
    assert list(again.without(A)) == [record(B)]
    assert Checkpoint.decode(Checkpoint().encode()).encode() == Checkpoint().encode()


def test_what_a_newer_version_wrote_is_kept() -> None:
    newer = f'{{"uid":"{A}","namespace":"n","name":"m","state":"PrepareStarted","partition":{{"gi": 3}}}}'
    claims = f'{{"{A}": {newer}}}'
    data = file(f'{{"claims": {claims}, "bootId": "x", "more": [1, 2]}}', version=7)
    checkpoint = Checkpoint.decode(data)
    assert checkpoint.get(A) == PreparedClaim(uid=A, namespace="n", name="m", state=ClaimState.STARTED)
    written = json.loads(checkpoint.changed({B: record(B)}).encode())
    assert written["version"] == 7
    assert written["payload"]["bootId"] == "x"
    assert written["payload"]["more"] == [1, 2]
    assert written["payload"]["claims"][A]["partition"] == {"gi": 3}
    assert set(written["payload"]["claims"]) == {A, B}


def test_settings_keep_the_names_that_earlier_versions_read() -> None:
    needs = DeviceSetting(device="gpu-0", uuid="U", partitioned=True, partitioned_before=False)
    raw = '{"device":"gpu-0","uuid":"U","mig":true,"migBefore":false}'
    assert codec.encode(needs).decode() == raw
    assert codec.decode(DeviceSetting, raw) == needs


def test_the_checksum_is_over_the_bytes_not_over_what_we_understand_of_them() -> None:
    odd = '{ "claims" : {\n} , "z":1.50 }'
    assert len(Checkpoint.decode(file(odd))) == 0
    with pytest.raises(DecodeError, match="checksum"):
        Checkpoint.decode(file(odd).replace(b"1.50", b"1.5"))


@given(st.data())
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    good = Checkpoint().changed({A: record(A)}).encode()
    at = data.draw(st.integers(0, len(good) - 2))
    new = data.draw(st.integers(0, 255).filter(lambda b: b != good[at]))
    changed = good[:at] + bytes([new]) + good[at + 1 :]
    try:
        found = Checkpoint.decode(changed)
    except DecodeError:
        return
    # The version number and the white space are not covered.
    assert list(found) == [record(A)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\x00" * 100,
        file("[]"),
        file('{"claims": []}'),
        file('{"claims": {"../x": {}}}'),
        file(f'{{"claims": {{"{A}": {{}}}}}}'),
        file(f'{{"claims": {{"{A}": {{"uid":"{B}","namespace":"n","name":"m","state":"PrepareStarted"}}}}}}'),
        file('{"claims": {"../x": {"uid":"../x","namespace":"n","name":"m","state":"PrepareStarted"}}}'),
    ],
)
def test_anything_else_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Checkpoint.decode(data)


def test_a_record_with_a_uid_that_is_no_file_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="claim UID"):
        Checkpoint().changed({Uid("../../x"): record(Uid("../../x"))})
