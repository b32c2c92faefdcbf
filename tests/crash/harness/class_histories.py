"""Random histories in which topics change their class back and forth, amid everything else.

A seed stands for its mixture, its steps, the order in which syncs and background jobs end, and for
what fails. Promotions and deletes are cut into small slices, and the rest goes on between them.

python -m tests.crash.harness.class_histories FIRST COUNT     # runs seeds, prints what breaks
python -m tests.crash.harness.class_histories SEED            # one, with its trace
"""

from __future__ import annotations

import random
import sys
import time
import traceback

from tests.crash.harness.class_draws import KINDS, Mood, config_of
from tests.crash.harness.class_steps import STEPS
from tests.crash.harness.class_world import ClassWorld, begin
from tests.crash.harness.log_harness import deterministic
from topics.testing import OrderViolation

LENGTH = 80


def rng_of(seed: int) -> random.Random:
    return random.Random(f"classes {seed}")


def theme_of(seed: int) -> str:
    return Mood(rng_of(seed)).theme


def run_class_history(seed: int, length: int = LENGTH) -> ClassWorld:
    """Raises what is broken, with the seed and what happened in its notes."""
    rng = rng_of(seed)
    mood = Mood(rng)
    with deterministic(seed), mood.bounds():
        world = ClassWorld(seed, rng, mood)
        try:
            _live(world, length)
        except BaseException as error:
            error.add_note(f"seed {seed} of tests.crash.harness.class_histories:")
            error.add_note("\n".join(world.trace))
            raise
    return world


def _live(world: ClassWorld, length: int) -> None:
    rng = world.rng
    weights = [often * world.mood.weights[kind] for kind, often in KINDS.items()]
    begin(world)
    for name in world.mood.names:
        config = config_of(rng, world.mood, name)
        world.facts.configured(name, config)
        world.trace.append(f"put {name} {config}")
        world.engine.put_topic(name, config)
        world.facts.made.add(name)
        if world.mood.begun and "discard" not in config:
            world.engine.append(name, [{"data": "f" * 150}] * world.mood.begun)
    for kind in rng.choices(list(KINDS), weights, k=length):
        STEPS[kind](world)
        world.drive()
        if world.is_poisoned or rng.random() < world.mood.ends:
            world.end()
        world.facts.watch(world.engine)
    world.end()


def main(first: int, count: int) -> None:
    began = time.monotonic()
    broken = 0
    for seed in range(first, first + count):
        try:
            run_class_history(seed)
        except (Exception, OrderViolation) as error:
            broken += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{seed}: {type(error).__name__} in {where.name}: {error}"[:400], flush=True)
    print(f"{count} histories in {time.monotonic() - began:.0f} s, {broken} broken")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(int(sys.argv[1]), int(sys.argv[2]))
    else:
        run_class_history(int(sys.argv[1]))
