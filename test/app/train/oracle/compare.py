"""What a run in float32 may differ in from a reference in float64, of which norms and softmax are in float32 too."""

import oracle.job  # noqa: F401, which makes test/support known
from bounds import assert_within

LOSS, NORM, WEIGHT = 1e-6, 1e-5, 5e-4  # relative; a weight's error to how far the weights of its tensor went


def relative(actual, expected):
    return abs(actual - expected) / abs(expected)


def way(start, end):
    """How far the weights of each tensor went, at most."""
    return {name: (end[name].double() - start[name].double()).abs().max().item() for name in start}


def same(test, actual, expected, way):
    for what, bound in (("lr", 1e-12), ("loss", LOSS), ("norm", NORM)):
        pairs = [*zip(getattr(actual, what), getattr(expected, what), strict=True)]
        for step, (mine, reference) in enumerate(pairs, 1):
            assert_within(test, relative(mine, reference), bound, f"{what} of step {step}: {pairs}")
    if expected.validation:  # a reference of layouts has none
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
