"""Bounds on a float32 run's difference from a float64 reference. The reference's norms and softmax are float32 too."""

import oracle.job  # noqa: F401, which makes test/support known
from bounds import assert_within

LOSS, NORM, WEIGHT = 1e-6, 1e-5, 5e-4  # relative; a weight's error to the largest change in its tensor


def relative(actual, expected):
    return abs(actual - expected) / abs(expected)


def way(start, end):
    """The largest change of a weight, by tensor."""
    return {name: (end[name].double() - start[name].double()).abs().max().item() for name in start}


def same(test, actual, expected, way):
    for what, bound in (("lr", 1e-12), ("loss", LOSS), ("norm", NORM)):
        pairs = [*zip(getattr(actual, what), getattr(expected, what), strict=True)]
        for step, (mine, reference) in enumerate(pairs, 1):
            assert_within(test, relative(mine, reference), bound, f"{what} of step {step}: {pairs}")
    if expected.validation:  # references of layouts have no validation
        test.assertEqual(set(actual.validation), set(expected.validation))
    for step, sources in expected.validation.items():
        for name, (loss, targets) in sources.items():
            mine, count = actual.validation[step][name]
            test.assertEqual(count, targets, f"targets of {name or 'all'}")
            assert_within(test, relative(mine, loss), LOSS, f"validation on {name or 'all'} at step {step}")
    test.assertEqual(set(actual.weights), set(expected.weights))
    for name, weight in expected.weights.items():
        error = (actual.weights[name].double() - weight).abs().max().item()
        assert_within(test, error, WEIGHT * way[name], f"{name}: {error / way[name]:.2g} of the way that it went")
