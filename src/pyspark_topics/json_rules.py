"""The rules of JSON Schema about numbers, strings, arrays and objects, each as a function.

A rule of one kind of value says nothing of the others. What a keyword must be is looked at when the
rule is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from fractions import Fraction
from math import isinf
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_topics.json_values import (
    BadSchema,
    day,
    is_integer,
    is_number,
    key_of,
    moment,
    pattern,
)

if TYPE_CHECKING:
    from pyspark_topics.json_schema import Compiler

# None, or the place within the value and the rule: `.items[3].sku: is not a string`.
Check: TypeAlias = Callable[[Any], str | None]


def wrong(at: str, keyword: str, wanted: str) -> BadSchema:
    return BadSchema(f"{at}/{keyword}: must be {wanted}")


def _number(schema: dict[str, Any], keyword: str, at: str) -> Any:
    if not is_number(schema[keyword]):
        raise wrong(at, keyword, "a number")
    return schema[keyword]


def _count(schema: dict[str, Any], keyword: str, at: str) -> int:
    found = schema[keyword]
    if not is_integer(found) or found < 0:
        raise wrong(at, keyword, "a count")
    return int(found)


def list_of(schema: dict[str, Any], keyword: str, at: str) -> list[Any]:
    found = schema[keyword]
    if not isinstance(found, list):
        raise wrong(at, keyword, "a list")
    return found


def _names(found: Any, keyword: str, at: str) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise wrong(at, keyword, "a list of names")
    return found


def _object(schema: dict[str, Any], keyword: str, at: str) -> dict[str, Any]:
    found = schema.get(keyword, {})
    if not isinstance(found, dict):
        raise wrong(at, keyword, "an object")
    return found


def _sizes(
    schema: dict[str, Any], at: str, kind: type[Sized], keywords: tuple[str, str], words: str
) -> Iterator[Check]:
    least, most = keywords
    if least in schema:
        low = _count(schema, least, at)
        few = f": has less than {low} {words}"
        yield lambda value: few if type(value) is kind and len(value) < low else None
    if most in schema:
        high = _count(schema, most, at)
        many = f": has more than {high} {words}"
        yield lambda value: many if type(value) is kind and len(value) > high else None


def numbers(_: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    def bound(keyword: str, is_so: Callable[[Any, Any], bool], words: str) -> Iterator[Check]:
        if keyword in schema:
            limit = _number(schema, keyword, at)
            words = f": is {words} {limit}"
            yield lambda value: words if is_number(value) and is_so(value, limit) else None

    yield from bound("minimum", lambda value, limit: value < limit, "less than")
    yield from bound("maximum", lambda value, limit: value > limit, "more than")
    yield from bound("exclusiveMinimum", lambda value, limit: value <= limit, "not more than")
    yield from bound("exclusiveMaximum", lambda value, limit: value >= limit, "not less than")
    if "multipleOf" in schema:
        if _number(schema, "multipleOf", at) <= 0:
            raise wrong(at, "multipleOf", "more than 0")
        # As they are written: 0.3 is a multiple of 0.1.
        step = Fraction(repr(schema["multipleOf"]))
        words = f": is no multiple of {schema['multipleOf']}"

        def is_multiple(value: Any) -> bool:
            is_finite = type(value) is int or not isinf(value)
            return is_finite and (Fraction(repr(value)) / step).denominator == 1

        yield lambda value: None if not is_number(value) or is_multiple(value) else words


def strings(_: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    yield from _sizes(schema, at, str, ("minLength", "maxLength"), "letters")
    if "pattern" in schema:
        search = pattern(schema["pattern"], f"{at}/pattern").search
        yield (
            lambda value: (
                ": does not match the pattern" if type(value) is str and not search(value) else None
            )
        )
    read: dict[Any, tuple[Callable[[str], Any], str]] = {
        "date": (day, ": is not a date"), "date-time": (moment, ": is not a date-time"),
    }  # fmt: skip
    asserted = schema.get("format")
    if isinstance(asserted, str) and asserted in read:
        reading, words = read[asserted]

        def check(value: Any) -> str | None:
            if type(value) is str:
                try:
                    reading(value)
                except (ValueError, OverflowError):
                    return words
            return None

        yield check


def items(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    if isinstance(schema.get("items"), list):
        raise BadSchema(f"{at}/items: a list of schemas is called prefixItems")
    first = [
        compiler.check(each, f"{at}/prefixItems/{n}")
        for n, each in enumerate(
            list_of(schema, "prefixItems", at) if "prefixItems" in schema else []
        )
    ]
    rest = compiler.check(schema["items"], f"{at}/items") if "items" in schema else None

    def check(value: Any) -> str | None:
        if type(value) is not list:
            return None
        for n, each in enumerate(value):
            rule = first[n] if n < len(first) else rest
            found = rule(each) if rule is not None else None
            if found is not None:
                return f"[{n}]{found}"
        return None

    yield check


def arrays(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    yield from _sizes(schema, at, list, ("minItems", "maxItems"), "items")
    if schema.get("uniqueItems") is True:
        yield (
            lambda value: (
                ": has an item twice"
                if type(value) is list and len(set(map(key_of, value))) < len(value)
                else None
            )
        )
    if "contains" in schema:
        rule = compiler.check(schema["contains"], f"{at}/contains")
        low = _count(schema, "minContains", at) if "minContains" in schema else 1
        high = _count(schema, "maxContains", at) if "maxContains" in schema else None

        def check(value: Any) -> str | None:
            if type(value) is not list:
                return None
            found = sum(rule(each) is None for each in value)
            is_so = found >= low and (high is None or found <= high)
            return None if is_so else ": does not contain what it must"

        yield check


def properties(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    named = {
        name: compiler.check(each, f"{at}/properties/{name}")
        for name, each in _object(schema, "properties", at).items()
    }
    matched = [
        (pattern(text, f"{at}/patternProperties").search, compiler.check(each, f"{at}/{text}"))
        for text, each in _object(schema, "patternProperties", at).items()
    ]
    others = None
    if schema.get("additionalProperties", True) is not True:
        others = compiler.check(schema["additionalProperties"], f"{at}/additionalProperties")

    def known(value: Any) -> str | None:
        if type(value) is dict:
            for name, rule in named.items():
                if name in value and (found := rule(value[name])) is not None:
                    return f".{name}{found}"
        return None

    def all_of_them(value: Any) -> str | None:
        if type(value) is not dict:
            return None
        for name, each in value.items():
            rules = [rule for search, rule in matched if search(name)]
            if name in named:
                rules.append(named[name])
            elif not rules and others is not None:
                rules.append(others)
            for rule in rules:
                if (found := rule(each)) is not None:
                    return f".{name}{found}"
        return None

    yield known if not matched and others is None else all_of_them


def objects(compiler: Compiler, schema: dict[str, Any], at: str) -> Iterator[Check]:
    if "required" in schema:
        yield _required(None, _names(schema["required"], "required", at))
    for name, others in _object(schema, "dependentRequired", at).items():
        yield _required(name, _names(others, "dependentRequired", at))
    for name, other in _object(schema, "dependentSchemas", at).items():
        rule = compiler.check(other, f"{at}/dependentSchemas/{name}")
        yield lambda value, name=name, rule=rule: (  # type: ignore[misc]
            rule(value) if type(value) is dict and name in value else None
        )
    if "propertyNames" in schema:
        named = compiler.check(schema["propertyNames"], f"{at}/propertyNames")
        yield (
            lambda value: (
                ": has a name that it must not have"
                if type(value) is dict and any(named(name) is not None for name in value)
                else None
            )
        )
    yield from _sizes(schema, at, dict, ("minProperties", "maxProperties"), "properties")


def _required(name: str | None, others: list[str]) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is dict and (name is None or name in value):
            for other in others:
                if other not in value:
                    return f".{other}: is missing"
        return None

    return check
