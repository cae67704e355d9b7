"""Does a series grow? The median slope between samples of the same life (process) of a program (Theil 1950, Sen 1968).

A median does not mind single samples: a password that is checked holds 19 MB for some milliseconds.
"""

import math
import statistics

# Growth that counts as none: a tenth of the level per hour, or a twentieth in all. The stacks of a thousand threads and the
# allocator's arenas reach their final size only after ten minutes.
SHARE, IN_ALL = 0.10, 0.05
# Most samples. If there are more, neighbours are merged into their median.
MOST = 400


def slopes(points):
    return [(later - earlier) / (to - since) for index, (since, earlier) in enumerate(points)
            for to, later in points[index + 1:]]


def correlation(points, slope):
    """How much each sample tells about the next."""
    rest = [value - slope * at for at, value in points]
    middle = statistics.median(rest)
    spread = sum((value - middle) ** 2 for value in rest)
    follow = sum((one - middle) * (other - middle) for one, other in zip(rest, rest[1:]))
    return min(max(follow / spread, 0), 0.9) if spread else 0


def fit(series, warm_up):
    """Slope per hour with the ends of its interval of 95%. `series`: (life, seconds, value); each life begins with `warm_up`
    seconds that do not count."""
    lives, together = {}, math.ceil(len(series) / MOST)
    for life, at, value in series:
        lives.setdefault(life, []).append((at / 3600, value))
    kept = []
    for points in lives.values():
        points = [point for point in points if point[0] >= points[0][0] + warm_up / 3600]
        points = [tuple(map(statistics.median, zip(*points[at:at + together]))) for at in range(0, len(points), together)]
        if len(points) > 3:
            kept.append(points)
    found = sorted(slope for points in kept for slope in slopes(points))
    if len(found) < 10:
        return None
    slope = statistics.median(found)
    # Kendall's variance; correlated samples count for fewer.
    variance = sum(len(points) * (len(points) - 1) * (2 * len(points) + 5) / 18 for points in kept)
    hang = max(correlation(points, slope) for points in kept)
    reach = 1.96 * math.sqrt(variance * (1 + hang) / (1 - hang)) / 2
    at = lambda rank: found[min(max(round(len(found) / 2 + rank), 0), len(found) - 1)]
    return slope, at(-reach), at(reach)


def judge(series, warm_up, floor):
    """A row of the summary. Growth of up to `floor` per hour is none, however low the level."""
    values = [value for _, _, value in series]
    row = {"samples": len(values), "level": statistics.median(values) if values else None}
    found = fit(series, warm_up)
    if not found:
        return row | {"verdict": "too few samples"}
    slope, low, high = found
    hours = (series[-1][1] - series[0][1] - warm_up) / 3600
    allowed = max(SHARE * row["level"], IN_ALL * row["level"] / hours, floor)
    verdict = "flat" if high <= allowed else "grows" if low > allowed else "too short to tell"
    return row | {"slope": slope, "low": low, "high": high, "allowed": allowed, "verdict": verdict}
