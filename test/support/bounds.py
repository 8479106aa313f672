"""Python's form of bounds.h and seed.h: comparisons with a tolerance, recorded for scripts/tolerances.sh, and seeds."""

import atexit
import contextlib
import copy
import math
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CHOSEN_SEED = int(os.environ.get("PPTRAIN_TEST_SEED", "0"))
_worst = {}  # place: [difference, bound, comparisons]


def seed(usual):
    """`usual` if PPTRAIN_TEST_SEED is unset, otherwise a seed from another thousand."""
    return usual + 1000 * CHOSEN_SEED


def _part(difference, bound):
    """The difference as a part of the bound."""
    if math.isnan(difference) or bound == 0:
        return math.inf if difference else 0.0
    return difference / bound


def assert_within(test, difference, bound, message=None, callers=1):
    """Asserts that the difference is less than its bound. `callers`: 1 if the caller is the place, 2 if its caller is."""
    difference, bound = float(difference), float(bound)
    frame = sys._getframe(callers)
    file = pathlib.Path(frame.f_code.co_filename).resolve()
    place = f"{file.relative_to(SOURCE) if file.is_relative_to(SOURCE) else file}:{frame.f_lineno}"
    worst = _worst.setdefault(place, [difference, bound, 0])
    worst[2] += 1
    if _part(difference, bound) > _part(*worst[:2]):
        worst[:2] = difference, bound
    test.assertLess(difference, bound, message)


@contextlib.contextmanager
def unrecorded():
    """For comparisons that must fail."""
    before = copy.deepcopy(_worst)
    try:
        yield
    finally:
        _worst.clear()
        _worst.update(before)


def exact(test):
    """Decorates a test or class of tests without a tolerance: it runs only with the usual seed."""
    return unittest.skipIf(CHOSEN_SEED, "has no tolerance")(test)


def refuse_near_ties(test, distance, least):
    """If a token scores two experts nearly equally, float32 may choose the other one, so the seed is not used."""
    if CHOSEN_SEED and distance <= least:
        test.skipTest("float32 may choose other experts with this seed")
    test.assertGreater(distance, least, "float32 may choose other experts: take another seed")


@atexit.register
def _write():
    file = os.environ.get("PPTRAIN_MARGINS")
    if file and _worst:
        lines = (f"{place}\t{difference:.6g}\t{bound:.6g}\t{count}\n" for place, (difference, bound, count) in _worst.items())
        with open(file, "a") as out:
            out.write("".join(lines))
