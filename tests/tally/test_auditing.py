"""`tallystick.audit` and `tallystick.verify_segment`: what the commands say, as values."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
Tally = Callable[..., Any]
NONCE = "07" * 32


@pytest.fixture(scope="module")
def forged(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tallystick.tally.attacks.catalogue import find_attack

    out = tmp_path_factory.mktemp("forged") / "run"
    find_attack("weights-edited").forge(honest, out)
    return out


@pytest.fixture(scope="module")
def calls(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calls") / "run"
    model = torch.nn.Linear(3, 2)
    with torch.no_grad(), tallystick.record_inference(model, out):
        model(torch.ones(1, 3))
    return out


def test_an_honest_run_is_accepted_and_printed_as_the_command_prints_it(tally: Tally, honest: Path) -> None:
    result = tallystick.audit(honest, tallystick.Policy(samples=2), nonce=NONCE)
    assert (result.outcome, result.objections) == ("accepted", ())
    assert result.findings
    assert without_clock(f"{result}\n") == without_clock(tally("audit", honest, "--samples", 2, "--nonce", NONCE).out)
    verbose = tally("audit", honest, "--samples", 2, "--nonce", NONCE, "-v").out
    assert {*result.text(verbose=True).splitlines()[:4]} <= {*verbose.splitlines()}


def without_clock(text: str) -> list[str]:
    """The lines of a report, without the one that two audits do not share."""
    lines = text.splitlines()
    assert sum(line.startswith("seconds: ") for line in lines) == 1
    return [line for line in lines if not line.startswith("seconds: ")]


def test_a_result_is_true_if_accepted_and_shown_in_one_line(honest: Path, forged: Path) -> None:
    accepted = tallystick.verify_segment(honest, 0, 4)
    assert accepted
    assert accepted.accepted
    claim = RunDirectory(honest).claim().identity
    assert repr(accepted) == f"<AuditResult accepted: 4 of 12 steps replayed from the recipe, claim {claim[:15]}…>"
    rejected = tallystick.audit(forged, tallystick.Policy(full=True))
    assert not rejected
    assert repr(rejected).startswith("<AuditResult rejected: 12 of 12 steps")


def test_an_edited_run_is_rejected_and_says_where(forged: Path) -> None:
    result = tallystick.audit(RunDirectory(forged), tallystick.Policy(full=True))
    assert result.outcome == "rejected"
    assert result.objections[0].name in str(result)
    assert isinstance(result.verdict, tallystick.Verdict)


def test_a_notebook_shows_the_page_of_the_command(tally: Tally, honest: Path, forged: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    tally("verify-segment", honest, "--from", 0, "--to", 4, "--html", page)
    shown = unescape(tallystick.verify_segment(honest, 0, 4)._repr_html_())
    checks = shown.partition("<h2>Checks</h2>")[2].partition("</table>")[0]
    assert checks
    assert checks == page.read_text().partition("<h2>Checks</h2>")[2].partition("</table>")[0]
    assert "Objections" in tallystick.audit(forged, tallystick.Policy(full=True)).page()


def test_recorded_calls_are_audited_in_the_same_way(tally: Tally, calls: Path, tmp_path: Path) -> None:
    result = tallystick.audit(calls, nonce=NONCE)
    assert result.accepted
    assert without_clock(str(result)) == without_clock(tally("audit", calls, "--nonce", NONCE).out)
    assert "1 of 1" in result.page()
    page = tmp_path / "page.html"
    assert tally("audit", calls, "--html", page).code == 0
    assert "calls replayed" in page.read_text()


def test_the_number_of_threads_is_left_as_it_was(honest: Path) -> None:
    torch.set_num_threads(2)
    try:
        tallystick.verify_segment(honest, 0, 4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_policy_is_read_from_its_file(honest: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("samples = 1\n")
    assert len(tallystick.audit(honest, path).to_json()["sampled"]) == 1
    path.write_text("samples = 0\n")
    with pytest.raises(tallystick.MalformedError, match="samples"):
        tallystick.audit(honest, path)


@pytest.mark.parametrize("asked", [{"nonce": b"short"}, {"nonce": "zz"}, {"device": "abacus"}])
def test_what_makes_no_sense_is_a_usage_error(honest: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(tallystick.UsageError):
        tallystick.audit(honest, **asked)


def test_what_is_no_run_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(tallystick.UnavailableError):
        tallystick.audit(tmp_path / "nothing")
    with pytest.raises(tallystick.TallyError):
        tallystick.verify_segment(tmp_path, 0, 4)
