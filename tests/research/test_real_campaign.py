"""A campaign on a real model that was stopped goes on where it was."""

from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    from research.real_model import Outcomes

    judged, path = [], tmp_path / "judged.jsonl"

    def judge(name: str) -> dict[str, str]:
        judged.append(name)
        return {"outcome": name}

    for names in (("a", "b"), ("b", "c", "a")):
        outcomes = Outcomes(path)
        assert [outcomes.of(each, lambda each=each: judge(each)) for each in names] == [{"outcome": n} for n in names]
    assert judged == ["a", "b", "c"]
    assert len(path.read_text().splitlines()) == 3
