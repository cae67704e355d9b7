"""Does a series grow? A line through samples of several lives (processes) of the same program, each with its own level."""

import math
import statistics

# Growth per hour that counts as none: a tenth of the level, or so much where that is more.
SHARE = 0.10


def fit(series, warm_up):
    """Slope per hour and twice its standard error. `series`: (life, seconds, value); each life begins with `warm_up` seconds
    that do not count. Samples that hang together count for fewer (by their correlation with the one before)."""
    lives = {}
    for life, at, value in series:
        lives.setdefault(life, []).append((at / 3600, value))
    centred = []
    for points in lives.values():
        kept = [point for point in points if point[0] >= points[0][0] + warm_up / 3600]
        if len(kept) > 2:
            middle = [statistics.fmean(column) for column in zip(*kept)]
            centred.append([(at - middle[0], value - middle[1]) for at, value in kept])
    spread = sum(at * at for points in centred for at, _ in points)
    count = sum(map(len, centred)) - len(centred) - 1
    if count < 3:
        return None
    slope = sum(at * value for points in centred for at, value in points) / spread
    rest = [[value - slope * at for at, value in points] for points in centred]
    noise = sum(value * value for points in rest for value in points)
    follow = sum(one * other for points in rest for one, other in zip(points, points[1:]))
    correlation = min(max(follow / noise, 0), 0.9) if noise else 0
    error = math.sqrt(noise / count / spread * (1 + correlation) / (1 - correlation))
    return slope, 2 * error


def judge(series, warm_up, floor):
    """A row of the summary."""
    values = [value for _, _, value in series]
    row = {"samples": len(values), "mean": statistics.fmean(values) if values else None}
    found = fit(series, warm_up)
    if not found:
        return row | {"verdict": "too few samples"}
    slope, bound = found
    allowed = max(SHARE * row["mean"], floor)
    verdict = "flat" if slope + bound <= allowed else "grows" if slope - bound > allowed else "too short to tell"
    return row | {"slope": slope, "bound": bound, "allowed": allowed, "verdict": verdict}
