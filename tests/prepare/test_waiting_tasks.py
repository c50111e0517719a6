"""A worker stays on its compressed file; nothing is done twice or forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.prepare.waiting_tasks import WaitingTasks


def waiting(chains):
    tasks = WaitingTasks()
    for number, chain in enumerate(chains):
        tasks.add(number, chain)
    return tasks


def test_workers_stay_on_their_chains_then_begin_others_then_help():
    tasks = waiting(["a", "a", "a", "a", "b", "b", None])
    assert [tasks.take(None), tasks.take(None)] == [0, 4]
    assert [tasks.take(0), tasks.take(4)] == [1, 5]
    assert tasks.take(5) == 6, "b is done, and a has its worker"
    assert tasks.take(6) == 2, "nothing else is left"
    tasks.put_back(2)
    assert [tasks.take(1), tasks.take(2), len(tasks)] == [2, 3, 0]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30), st.lists(st.integers(0, 3), min_size=60))
def test_every_task_is_taken_once_and_those_of_a_chain_in_their_order(chains, workers):
    tasks, last, taken = waiting(chains), {}, []
    while tasks:
        worker = workers[len(taken)]
        last[worker] = tasks.take(last.get(worker))
        taken.append(last[worker])
    assert sorted(taken) == list(range(len(chains)))
    for chain in ("a", "b", "c"):
        own = [task for task in taken if chains[task] == chain]
        assert own == sorted(own)


def test_nothing_is_left_after_clear():
    tasks = waiting(["a", None, "b"])
    tasks.clear()
    assert (len(tasks), bool(tasks)) == (0, False)
