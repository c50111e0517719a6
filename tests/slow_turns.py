"""The slow, obvious reference of how a mixture interleaves its sources. It imports nothing."""


def slow_turns(weights, count):
    """A mixture's turns by the rule, looked up anew at each: (source, its row). The next row of
    each is due or not.
    """
    total = sum(weights.values())
    rows = dict.fromkeys(weights, 0)
    for turn in range(count):
        due = []
        for name, weight in sorted(weights.items()):
            begin = rows[name] * total // weight
            end = -(-(rows[name] + 1) * total // weight)
            if begin <= turn:
                due.append((end, name))
        name = min(due)[1]
        yield name, rows[name]
        rows[name] += 1
