"""The tokens of each step of a job, only from the description of their order in core/data/README.md."""

import fractions
import math

BITS_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    """SplitMix64's next value from state x."""
    x = (x + GOLDEN) & BITS_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS_64
    return x ^ (x >> 31)


def permuted(index, size, key):
    """The end of a walk from `index` with a Feistel network of 8 rounds over the least power of four that holds `size`."""
    half = 1
    while 4 ** half < size:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(8):
            left, right = right, left ^ (mix(mix((key + turn) & BITS_64) ^ right) & mask)
        index = left << half | right
        if index < size:
            return index


class Source:
    """One stream of tokens. Sample i is tokens[i * seq_len : (i + 1) * seq_len + 1]."""

    def __init__(self, tokens, seq_len, seed, number):
        self.tokens, self.seq_len = tokens, seq_len
        self.samples = (len(tokens) - 1) // seq_len
        self.seed = (seed ^ number * GOLDEN) & BITS_64

    def sample(self, n):
        """The n-th sample that training takes from the source, over all its epochs."""
        epoch, index = divmod(n, self.samples)
        return self.row(permuted(index, self.samples, mix(self.seed) ^ mix(~epoch & BITS_64)))

    def row(self, index):
        return self.tokens[index * self.seq_len:(index + 1) * self.seq_len + 1]

    def all_rows(self):
        """All rows: each token but the first is a label once. The last row may be short."""
        return [self.row(i) for i in range(math.ceil((len(self.tokens) - 1) / self.seq_len))]


class Mixture:
    def __init__(self, streams, weights, seq_len, seed):
        self.sources = [Source(tokens, seq_len, seed, i) for i, tokens in enumerate(streams)]
        parts = [fractions.Fraction(weight) for weight in weights]
        common = math.lcm(*(part.denominator for part in parts))
        whole = [int(part * common) for part in parts]
        self.shares = [share // math.gcd(*whole) for share in whole]
        self.order = []  # of a period: source, and its number of earlier samples
        taken = [0 for _ in whole]
        for n in range(sum(self.shares)):
            behind = [share * max(n, 1) - sum(self.shares) * had for share, had in zip(self.shares, taken)]
            source = behind.index(max(behind))
            self.order.append((source, taken[source]))
            taken[source] += 1

    def place(self, position):
        """The source of the run's sample number `position`, and the sample's number in that source."""
        period, n = divmod(position, len(self.order))
        source, before = self.order[n]
        return source, period * self.shares[source] + before

    def sample(self, position):
        source, n = self.place(position)
        return self.sources[source].sample(n)
