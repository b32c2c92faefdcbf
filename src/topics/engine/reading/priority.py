"""How much a topic matters to the scheduler right now. Integers only; nothing here is stored.

    effective = manual priority, or the recency bonus where there is none
              + the boost of a topic that has been waiting

The bonus is AUTO_MAX when the topic was just consumed and halves every HALF_LIFE_MS.
"""

from __future__ import annotations

from topics.types import TopicConfig, clamp

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
AUTO_MAX = 500
HALF_LIFE_MS = 30_000
AUTO_FLOOR_MS = 300_000
AGE_PER_S = 100
AGE_CAP_MS = 10_000

_STEPS = 64
_ONE = 1 << 16
# 2^-x for x in [0, 1], as parts of _ONE.
_HALVING = [round(2 ** (-step / _STEPS) * _ONE) for step in range(_STEPS + 1)]


def effective(
    config: TopicConfig,
    *,
    consumed_ms: int | None,
    now_ms: int,
    waited_ms: int = 0,
) -> int:
    """The priority of a topic that was last consumed at `consumed_ms`, None for never."""
    age = age_boost(waited_ms)
    if config.priority is not None:
        return clamp(config.priority, PRIORITY_MIN, PRIORITY_MAX) + age
    if not config.auto_priority or consumed_ms is None:
        return age
    return recency_bonus(now_ms - consumed_ms) + age


def recency_bonus(elapsed_ms: int) -> int:
    """AUTO_MAX * 2^(-elapsed / HALF_LIFE_MS), rounded; 0 from AUTO_FLOOR_MS on."""
    if elapsed_ms >= AUTO_FLOOR_MS:
        return 0
    # The wall clock may have gone back since the topic was consumed.
    halvings, rest = divmod(max(elapsed_ms, 0), HALF_LIFE_MS)
    step, part = divmod(rest * _STEPS, HALF_LIFE_MS)
    high, low = _HALVING[step], _HALVING[step + 1]
    scaled = AUTO_MAX * (high * HALF_LIFE_MS - (high - low) * part) // HALF_LIFE_MS
    unit = _ONE << halvings
    return (scaled + unit // 2) // unit


def age_boost(waited_ms: int) -> int:
    """What keeps a topic of low priority from starving."""
    return AGE_PER_S * clamp(waited_ms, 0, AGE_CAP_MS) // 1000
