"""Random initial weights, from their description in core/nn/README.md."""

import statistics

import numpy

from oracle.data_order import BITS_64, mix


def hash_of(name):
    """FNV-1a of 64 bits."""
    result = 0xCBF29CE484222325
    for byte in name.encode():
        result = ((result ^ byte) * 0x100000001B3) & BITS_64
    return result


def philox(counters, key):
    """Four words of 32 bits for each counter, by Philox4x32-10."""
    low = numpy.uint64(0xFFFFFFFF)
    half = numpy.uint64(32)
    counters = numpy.asarray(counters, dtype=numpy.uint64)
    zeros = numpy.zeros_like(counters)
    words = [counters & low, counters >> half, zeros, zeros]
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        first, second = numpy.uint64(0xD2511F53) * words[0], numpy.uint64(0xCD9E8D57) * words[2]
        words = [second >> half ^ words[1] ^ numpy.uint64(keys[0]), second & low,
                 first >> half ^ words[3] ^ numpy.uint64(keys[1]), first & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return numpy.stack(words, axis=-1)


def initial_values(name, shape, seed, std):
    """Float32. `name`: the parameter's name in pptrain, such as layers.0.attn.q.weight."""
    size = int(numpy.prod(shape))
    words = philox(numpy.arange((size + 3) // 4), mix(hash_of(name) ^ mix(seed))).reshape(-1)[:size]
    quantile = statistics.NormalDist().inv_cdf
    values = [std * quantile((word + 0.5) / 2**32) for word in words.tolist()]
    return numpy.array(values, dtype=numpy.float32).reshape(shape)
