"""One plan from several threads, and the GIL released during calls."""

import sys
import threading

import numpy as np

import libkda
from arrays import World


def run_extend(plan, world):
    plan.extend(**world.arguments(), slots=np.array([2]), cu_seqlens=np.array([0, world.tokens]))
    return world.out.tobytes(), world.pool.tobytes()


def test_one_plan_from_several_threads():
    def fresh(seed):
        world = World(seed, tokens=40)
        world.fill(2)
        return world

    plan = libkda.plan(backend="cpu", **fresh(0).problem())
    expected = [run_extend(plan, fresh(seed)) for seed in range(4)]
    found = [[] for _ in range(4)]

    def work(seed):
        for _ in range(5):
            found[seed].append(run_extend(plan, fresh(seed)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert found[seed] == [expected[seed]] * 5


def test_calls_release_the_gil():
    """With a switch interval of minutes another thread runs only where a call lets go of the GIL."""
    world = World(1, tokens=64)
    world.fill(2)
    plan = libkda.plan(backend="cpu", **world.problem())
    arguments = dict(world.arguments(), slots=np.array([2]), cu_seqlens=np.array([0, 64]))
    gate, seen = threading.Lock(), []

    def wait():
        gate.acquire()
        seen.append(True)

    gate.acquire()
    other = threading.Thread(target=wait)
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        gate.release()
        for _ in range(2000):
            if seen:
                break
            plan.extend(**arguments)
        assert seen
    finally:
        sys.setswitchinterval(interval)
        other.join()
