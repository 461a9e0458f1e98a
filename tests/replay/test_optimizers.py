"""Optimizers that are built anew have the number of those that they replace; others have their own."""

from hotloop.agent.replay.recorder import OptimizerNumbers

HERE, THERE = ["train.py", 9, "main"], ["train.py", 12, "main"]


def test_an_optimizer_that_is_built_anew_each_step_is_one() -> None:
    numbers = OptimizerNumbers()
    seen = []
    for key in (10, 20, 10, 20, 30):
        numbers.built(key)
        seen += [numbers.index_of(key, HERE), numbers.index_of(key, HERE)]
    assert seen == [0] * 10
    assert len(numbers) == 1


def test_two_that_one_helper_makes_are_two_also_when_both_are_made_anew() -> None:
    numbers = OptimizerNumbers()
    seen = []
    for generator, critic in ((10, 20), (30, 40), (20, 10)):
        numbers.built(generator)
        numbers.built(critic)
        for _ in range(2):
            seen += [numbers.index_of(generator, HERE), numbers.index_of(critic, HERE)]
    assert seen == [0, 1] * 6


def test_one_that_goes_on_beside_its_successor_is_another() -> None:
    numbers = OptimizerNumbers()
    numbers.built(10)
    first = numbers.index_of(10, HERE)
    numbers.built(20)
    second = numbers.index_of(20, HERE)
    third = numbers.index_of(10, HERE)
    assert (first, second, third, numbers.index_of(20, HERE)) == (0, 0, 1, 0)


def test_what_is_made_elsewhere_or_at_an_unknown_place_is_another() -> None:
    numbers = OptimizerNumbers()
    numbers.built(10)
    assert numbers.index_of(10, HERE) == 0
    numbers.built(20)
    assert numbers.index_of(20, THERE) == 1
    assert (numbers.index_of(30, None), numbers.index_of(40, None), numbers.index_of(30, None)) == (2, 3, 2)
