"""Many numbers at once, as text: seqs come in runs."""

from __future__ import annotations

_NUMBERS = [b"%d" % number for number in range(1000)]
_LAST_DIGITS = [b"%03d" % number for number in range(1000)]


def consecutive(first: int, count: int, between: bytes) -> bytes:
    """`first` and the numbers after it, with something between them.

    Those of one thousand differ in their last three digits only, which are there already: a tenth
    of the work of writing each.
    """
    parts = []
    while count:
        thousand, low = divmod(first, 1000)
        some = min(1000 - low, count)
        digits = _LAST_DIGITS[low : low + some] if thousand else _NUMBERS[low : low + some]
        lead = b"%d" % thousand if thousand else b""
        parts.append(lead + (between + lead).join(digits))
        first += some
        count -= some
    return between.join(parts)
