"""Every binding of a run is rechecked: one forged document each, and the finding that names it.

The forgeries here are written by someone who recomputes what depends on them, so that a single check is left to see
each; forgeries of whole runs stand in `tests/tally/attacks/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.opening import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.verdict import Findings

Change = Callable[[list[dict[str, Any]]], None]
OTHER = "sha256:" + "0" * 64


def objections(run: Path, **policy: Any) -> dict[str, str]:
    """The checks that disagree over a run, and what each says."""
    evidence = gather_evidence(RunDirectory(run), Policy.from_json(policy, "policy"))
    return {finding.name: finding.detail for finding in evidence.findings.seen if not finding.agrees}


def edit(path: Path, **changes: Any) -> None:
    """Replace fields of a canonical JSON document."""
    path.write_bytes(encode(json.loads(path.read_bytes()) | changes))


def find(records: list[dict[str, Any]], kind: str, index: int) -> dict[str, Any]:
    return next(record for record in records if (record["kind"], record.get("index")) == (kind, index))


def test_an_honest_run_has_no_objection(honest: Path) -> None:
    evidence = gather_evidence(RunDirectory(honest), Policy())
    assert evidence.findings.seen
    assert objections(honest) == {}
    assert (evidence.steps, sorted(evidence.anchors)) == (12, [0, 4, 8, 12])


def test_rewriting_without_a_change_leaves_no_objection(run: Path, rewrite: Callable[..., None]) -> None:
    rewrite(run, lambda records: None)
    assert objections(run) == {}


def test_the_expected_claim_is_compared(run: Path) -> None:
    identity = RunDirectory(run).claim().identity
    assert objections(run, claim=identity) == {}
    assert "not the expected" in objections(run, claim=OTHER)["claim"]


@pytest.mark.parametrize(
    ("field", "check"),
    [
        ("spec", "spec"),
        ("environment", "environment"),
        ("data", "data"),
        ("final_state", "final state"),
    ],
)
def test_a_claim_that_names_another_digest_is_an_objection(run: Path, field: str, check: str) -> None:
    edit(run / "claim.json", **{field: OTHER})
    assert check in objections(run)


@pytest.mark.parametrize("log", ["transcript", "trace"])
def test_a_claim_that_names_another_root_is_an_objection(run: Path, log: str) -> None:
    claim = RunDirectory(run).claim()
    edit(run / "claim.json", **{log: {"root": OTHER, "size": getattr(claim, log).size}})
    assert "does not have the root" in objections(run)[f"{log} root"]


def test_another_environment_than_the_claims_is_an_objection(run: Path) -> None:
    edit(run / "environment.json", threads=7)
    assert "environment" in objections(run)


def test_another_spec_than_the_claims_is_an_objection(run: Path) -> None:
    spec = json.loads((run / "spec.json").read_bytes())
    spec["recipe"]["training"]["seed"] = 99
    (run / "spec.json").write_bytes(encode(spec))
    assert "spec" in objections(run)


def remove(kind: str, index: int) -> Change:
    def change(records: list[dict[str, Any]]) -> None:
        records.remove(find(records, kind, index))

    return change


def put(kind: str, index: int, **fields: Any) -> Change:
    def change(records: list[dict[str, Any]]) -> None:
        find(records, kind, index).update(fields)

    return change


def swap(first: int, second: int) -> Change:
    def change(records: list[dict[str, Any]]) -> None:
        records[first], records[second] = records[second], records[first]

    return change


def repeat(place: int) -> Change:
    return lambda records: records.insert(place, records[place])


def cut_batch(records: list[dict[str, Any]]) -> None:
    find(records, "step", 5)["batch"]["indices"].pop()


def swap_batch(records: list[dict[str, Any]]) -> None:
    first, second = find(records, "step", 5)["batch"], find(records, "step", 6)["batch"]
    first["indices"], second["indices"] = second["indices"], first["indices"]


def break_link(records: list[dict[str, Any]]) -> None:
    find(records, "step", 7)["pre"] = find(records, "step", 3)["pre"]


def use_validation(records: list[dict[str, Any]]) -> None:
    find(records, "step", 5)["batch"]["split"] = "validation"


def fail_late(records: list[dict[str, Any]]) -> None:
    records.append({"kind": "failed", "index": 13, "error": "too late"})


def anchor_early(records: list[dict[str, Any]]) -> None:
    place = records.index(find(records, "step", 5)) + 1
    records.insert(place, find(records, "anchor", 4) | {"index": 5, "file": "anchors/step_00000005.safetensors"})


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (remove("step", 5), "step 6 stands after step 4"),
        (remove("anchor", 4), "the anchor of step 4 is missing"),
        (remove("anchor", 12), "ends without the anchor"),
        (remove("step", 12), "anchor 12 stands after step 11"),
        (lambda records: records.__delitem__(slice(-2, None)), "ends at step 11 of 12"),
        (lambda records: records.__delitem__(0), "instead of its header"),
        (swap(3, 4), "step 3 stands after step 1"),
        (repeat(3), "step 2 stands after step 2"),
        (repeat(0), "a second header"),
        (fail_late, "behind the last step"),
        (anchor_early, "anchor 5 is not one the spec asks for"),
        (put("step", 5, learning_rate=1e-3), "step 5 used learning rate"),
        (put("step", 5, data=OTHER), "step 5 names another data root"),
        (put("anchor", 4, file="anchors/step_00000008.safetensors"), "anchor 4 names the file"),
        (cut_batch, "step 5 consumed other examples"),
        (swap_batch, "step 5 consumed other examples"),
        (use_validation, "step 5 consumed other examples"),
        (break_link, "step 7 does not start from the state"),
        (put("header", None, data=OTHER), "another data root"),  # type: ignore[arg-type]
        (put("header", None, spec=OTHER), "another spec"),  # type: ignore[arg-type]
        (put("header", None, environment=OTHER), "another environment"),  # type: ignore[arg-type]
    ],
)
def test_records_out_of_order_or_unbound_are_an_objection(
    run: Path, rewrite: Callable[..., None], change: Change, detail: str
) -> None:
    rewrite(run, change)
    found = objections(run)
    assert "transcript root" not in found
    assert re.search(detail, found["record order"])


@pytest.mark.parametrize(
    "knob", [{"loss_decimals": 2}, {"anchor_stride": 5}, {"grid_eps": 1.0}, {"bucket_mode": "grid"}]
)
def test_a_header_that_shows_other_knobs_than_the_spec_is_an_objection(
    run: Path, rewrite: Callable[..., None], knob: dict[str, Any]
) -> None:
    rewrite(run, lambda records: records[0]["knobs"].update(knob))
    assert f"{next(iter(knob))} is not the spec's" in objections(run)["record order"]


def test_a_crashed_step_before_its_repetition_is_no_objection(run: Path, rewrite: Callable[..., None]) -> None:
    def crash(records: list[dict[str, Any]]) -> None:
        place = records.index(find(records, "step", 6))
        records.insert(place, {"kind": "failed", "index": 6, "error": "RuntimeError: out of memory"})

    rewrite(run, crash)
    assert objections(run) == {}


def test_an_anchor_file_with_another_state_is_an_objection(run: Path) -> None:
    (run / "anchors/step_00000004.safetensors").write_bytes((run / "anchors/step_00000008.safetensors").read_bytes())
    assert "does not hold the state" in objections(run)["anchor"]


def test_a_record_of_an_anchor_that_names_another_state_is_an_objection(
    run: Path, rewrite: Callable[..., None]
) -> None:
    rewrite(run, put("anchor", 8, digest=OTHER))
    assert "does not hold the state" in objections(run)["anchor"]


def test_a_blob_with_other_bytes_than_its_name_is_an_objection(run: Path) -> None:
    blob = sorted((run / "blobs").iterdir())[0]
    blob.write_bytes(blob.read_bytes()[:-1])
    assert "does not hold the bytes it is named after" in objections(run)["boundary hints"]


def test_data_with_other_bytes_is_an_objection(run: Path) -> None:
    path = run / "data/source.txt"
    path.write_bytes(path.read_bytes().replace(b"Notch", b"Stick", 1))
    assert "not the committed source" in objections(run)["data"]


def test_a_tile_with_another_hash_is_an_objection(run: Path) -> None:
    tile = next(path for path in (run / "tiles/transcript").rglob("*") if path.is_file())
    tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
    assert "tiles" in objections(run)


@pytest.mark.parametrize(
    "name",
    [
        "claim.json",
        "spec.json",
        "environment.json",
        "transcript.jsonl",
        "trace.jsonl",
        "data/tokens.bin",
        "anchors/step_00000008.safetensors",
    ],
)
@pytest.mark.parametrize("instead", ["nothing", "directory"])
def test_a_missing_file_is_named(run: Path, name: str, instead: str) -> None:
    (run / name).unlink()
    if instead == "directory":
        (run / name).mkdir()
    with pytest.raises(UnavailableError, match=Path(name).name):
        gather_evidence(RunDirectory(run), Policy())
    findings = Findings(keeps_going=True)
    with suppress(ProofError):  # where nothing of the run can be read
        gather_evidence(RunDirectory(run), Policy(), findings)
    assert not findings.rejected
    assert any(Path(name).name in str(line) for line in findings.undecided)


@pytest.mark.parametrize("name", ["claim.json", "spec.json", "environment.json"])
def test_documents_that_are_not_canonical_are_refused(run: Path, name: str) -> None:
    data = (run / name).read_bytes()
    for spelling in (data + b"\n", data.replace(b":", b": ", 1), b'{"zzz":1,' + data[1:], b"[]", b"", b"\xff"):
        (run / name).write_bytes(spelling)
        with pytest.raises(MalformedError if name == "claim.json" else ProofError, match=name):
            gather_evidence(RunDirectory(run), Policy())


def test_a_spec_of_another_version_that_the_claim_names_is_not_understood_and_not_rejected(run: Path) -> None:
    data = (run / "spec.json").read_bytes().replace(b'"version":1', b'"version":2')
    (run / "spec.json").write_bytes(data)
    edit(run / "claim.json", spec=digest("spec", data))
    with pytest.raises(MalformedError, match=r"spec\.json: version"):
        gather_evidence(RunDirectory(run), Policy())


def test_a_record_without_form_that_the_claim_names_is_not_understood_and_not_rejected(
    run: Path, rewrite: Callable[..., None]
) -> None:
    rewrite(run, lambda records: records[5].update(kind="miracle"))
    findings = Findings(keeps_going=True)
    evidence = gather_evidence(RunDirectory(run), Policy(), findings)
    assert (evidence.records.are_complete, findings.rejected) == (False, False)
    assert [line for line in findings.open_lines if "line 6" in line]


@pytest.mark.parametrize("log", ["transcript.jsonl", "trace.jsonl"])
@pytest.mark.parametrize("harm", [b'{"kind":"step"', b"\n", b"{}\n", b"nonsense\n", b'{"a":NaN}\n', b"\xff\n"])
def test_a_torn_or_foreign_line_at_the_end_is_refused_with_its_number(run: Path, log: str, harm: bytes) -> None:
    lines = len((run / log).read_bytes().splitlines())
    with (run / log).open("ab") as file:
        file.write(harm)
    assert f"{log}: line {lines + 1}" in objections(run)["trace root" if log == "trace.jsonl" else "transcript root"]


def test_more_records_than_the_policy_allows_are_refused(honest: Path) -> None:
    with pytest.raises(UnavailableError, match="more than the 5 records"):
        gather_evidence(RunDirectory(honest), Policy(records_max=5))


def test_a_larger_anchor_than_the_policy_allows_is_refused(honest: Path) -> None:
    with pytest.raises(UnavailableError, match="larger than the 1000 bytes"):
        gather_evidence(RunDirectory(honest), Policy(anchor_bytes_max=1000))


def test_one_step_is_read_from_its_place(honest: Path) -> None:
    evidence = gather_evidence(RunDirectory(honest), Policy())
    assert [evidence.step(index).index for index in (12, 1, 7)] == [12, 1, 7]
