"""The settings of an optimizer as a field of a document: one rule for each parameter group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

if TYPE_CHECKING:
    from tallystick.transcripts.rule import GroupRule
else:
    GroupRule = Any  # rules are loaded where a document states one


def _rule(value: Any) -> GroupRule:
    from tallystick.transcripts.rule import stated_rule

    return stated_rule(value)


StatedRule = Annotated[GroupRule, PlainValidator(_rule), PlainSerializer(lambda rule: rule.to_json(), return_type=Any)]
StatedRules = Annotated[tuple[StatedRule, ...], Field(min_length=1, max_length=4096)]
