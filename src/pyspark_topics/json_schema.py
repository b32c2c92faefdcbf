"""JSON Schema as functions: why a value is refused, or that it is not.

Draft 2020-12, with what older drafts say in the same words. `format` is asserted for `date` and
`date-time`, which become columns, and a note elsewhere. What is not done here (`unevaluated…`,
references to other documents) is refused with its name before anything is read: a rule that is
passed over would let in what it was written against. Keywords nobody knows are notes, as the
standard says.

A reason names the place and the rule, never the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from pyspark_topics import json_rules
from pyspark_topics.json_rules import Check, list_of, wrong
from pyspark_topics.json_values import TYPES, BadSchema, key_of

NOT_DONE = frozenset(
    {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies",
     "additionalItems"}
)  # fmt: skip


def checking(schema: Any) -> Callable[[Any], str | None]:
    """Why a value is refused by this schema, in words; None when it is not. Raises BadSchema."""
    check = Compiler(schema).check(schema, "#")

    def why(value: Any) -> str | None:
        found = check(value)
        return None if found is None else found.removeprefix(".").removeprefix(": ")

    return why


def resolved(root: Any, reference: Any, at: str) -> Any:
    """The schema that a reference within the document names. Raises BadSchema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise BadSchema(f"{at}: $ref to another document or an anchor is not done here")
    found = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise BadSchema(f"{at}: $ref {reference} names nothing")
    return found


class Compiler:
    """The functions of one document's schemas."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # By reference, so that a schema may name itself.
        self._referred: dict[str, list[Check]] = {}

    def check(self, schema: Any, at: str) -> Check:
        """Raises BadSchema."""
        if schema is True:
            return lambda _: None
        if schema is False:
            return lambda _: ": is not allowed"
        if not isinstance(schema, dict):
            raise BadSchema(f"{at}: a schema is an object, true or false")
        for name in NOT_DONE & schema.keys():
            raise BadSchema(f"{at}: {name} is not done here")
        if "$id" in schema and at != "#":
            raise BadSchema(f"{at}: $id within a document is not done here")
        checks = [
            check
            for names, make in _RULES
            if any(name in schema for name in names)
            for check in make(self, schema, at)
        ]
        return checks[0] if len(checks) == 1 else _all(checks)

    def referred(self, reference: Any, at: str) -> Check:
        found = resolved(self._root, reference, at)
        if reference not in self._referred:
            made = self._referred[reference] = []
            made.append(self.check(found, reference))
        made = self._referred[reference]
        return lambda value: made[0](value)


def _all(checks: list[Check]) -> Check:
    def check(value: Any) -> str | None:
        for each in checks:
            found = each(value)
            if found is not None:
                return found
        return None

    return check


def _type(_: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not wanted or not all(isinstance(name, str) and name in TYPES for name in wanted):
        raise wrong(at, "type", f"of {', '.join(TYPES)}")
    words = ": is not " + " or ".join(TYPES[name][1] for name in wanted)
    if len(wanted) == 1:
        is_one = TYPES[wanted[0]][0]
        yield lambda value: None if is_one(value) else words
        return
    tests = [TYPES[name][0] for name in wanted]
    yield lambda value: None if any(test(value) for test in tests) else words


def _enum(_: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    if "enum" in schema:
        known = {key_of(value) for value in list_of(schema, "enum", at)}
        yield lambda value: None if key_of(value) in known else ": is none of the values"
    if "const" in schema:
        only = key_of(schema["const"])
        yield lambda value: None if key_of(value) == only else ": is not the value"


def _reference(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    yield compiler.referred(schema["$ref"], at)


def _combined(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    def each_of(keyword: str) -> list[Check]:
        found = list_of(schema, keyword, at) if keyword in schema else []
        return [compiler.check(one, f"{at}/{keyword}/{n}") for n, one in enumerate(found)]

    yield from each_of("allOf")
    if "anyOf" in schema:
        some = each_of("anyOf")
        yield (
            lambda value: (
                None if any(check(value) is None for check in some) else ": fits none of anyOf"
            )
        )
    if "oneOf" in schema:
        one = each_of("oneOf")
        yield (
            lambda value: (
                None
                if sum(check(value) is None for check in one) == 1
                else ": fits not one of oneOf"
            )
        )
    if "not" in schema:
        none = compiler.check(schema["not"], f"{at}/not")
        yield lambda value: ": is what it must not be" if none(value) is None else None


def _conditional(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    condition = compiler.check(schema["if"], f"{at}/if")
    then = compiler.check(schema.get("then", True), f"{at}/then")
    other = compiler.check(schema.get("else", True), f"{at}/else")
    yield lambda value: (then if condition(value) is None else other)(value)


_Rule: TypeAlias = Callable[[Compiler, dict[str, Any], str], Iterator[Check]]
# In this order, so that the plainest reason is found first.
_RULES: list[tuple[tuple[str, ...], _Rule]] = [
    (("type",), _type),
    (("enum", "const"), _enum),
    (
        ("required", "dependentRequired", "dependentSchemas", "propertyNames", "minProperties",
         "maxProperties"),
        json_rules.objects,
    ),
    (("properties", "patternProperties", "additionalProperties"), json_rules.properties),
    (("minItems", "maxItems", "uniqueItems", "contains"), json_rules.arrays),
    (("prefixItems", "items"), json_rules.items),
    (
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        json_rules.numbers,
    ),
    (("minLength", "maxLength", "pattern", "format"), json_rules.strings),
    (("$ref",), _reference),
    (("allOf", "anyOf", "oneOf", "not"), _combined),
    (("if",), _conditional),
]  # fmt: skip
