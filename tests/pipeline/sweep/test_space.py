"""The space of a search: each function of `-S` as a distribution, and the points with exact values."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from pipeline.sweep.plan import expand
from pipeline.sweep.search import read_space
from stages.contracts.errors import ParamsError


@pytest.mark.parametrize(
    ("set_param", "distribution"),
    [
        ("a.x=interval(1,2.5)", FloatDistribution(1.0, 2.5)),
        ("a.x=tag(log,interval(1e-5,1e-1))", FloatDistribution(1e-5, 1e-1, log=True)),
        ("a.x=int(interval(1,64))", IntDistribution(1, 64)),
        ("a.x=int(tag(log,interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("a.x=range(16,128,16)", IntDistribution(0, 6)),
        ("a.x=range(0.1,0.4,0.1)", IntDistribution(0, 3)),
        ("a.x=choice(adam,sgd,adam)", CategoricalDistribution((0, 1))),
        ("a.x=16,32,64", CategoricalDistribution((0, 1, 2))),
    ],
)
def test_function_of_hydra_is_a_distribution(set_param, distribution):
    [dimension] = read_space([set_param], optuna).dimensions

    assert dimension.distribution == distribution


def test_point_has_every_value_exactly_and_a_short_name():
    others = ["+a.n=int(interval(1,9))", "a.kind=sgd,adam", "b.yaml:w=range(0,9,3)", "a.fixed=[1,2]"]
    space = read_space(["a.rate=tag(log,interval(1e-7,1))", *others], optuna)

    names = [each.name for each in space.dimensions]
    point = space.point(dict(zip(names, (1 / 3e6, 4, 1, 2), strict=True)))

    own = ("a.fixed=[1,2]", "a.rate=3.3333333333333335e-07", "+a.n=4", "a.kind=adam")
    assert point.overrides == (("params.yaml", own), ("b.yaml", ("w=6",)))
    assert point.varying == (("a.rate", "3.333e-07"), ("a.n", "4"), ("a.kind", "adam"), ("w", "6"))
    assert float(own[1].partition("=")[2]) == 1 / 3e6


@pytest.mark.parametrize(
    "set_param", ["a.x=range(1,4)", "a.x=range(0.1,0.5,0.1)", "a.x='x y',null,true,[1,2]"]
)
def test_discrete_param_has_the_points_of_the_grid(set_param):
    space = read_space([set_param], optuna)
    [dimension] = space.dimensions

    points = [space.point({dimension.name: number}) for number in range(len(dimension.texts))]

    assert points == expand([set_param])


@pytest.mark.parametrize(
    ("set_param", "message"),
    [
        ("a.x=interval(2,1)", "a.x=interval(2,1): `low <= high` must hold"),
        ("a.x=tag(log,interval(0,1))", "`low > 0` must hold"),
        ("a.x=interval(0,inf)", "the bounds of an interval must be finite"),
        ("a.x=shuffle(range(3))", "Remove shuffle"),
        ("a.x=tag(log,range(1,9))", "the only tag is log, of an interval"),
        ("a.x=tag(lgo,interval(1,9))", "the only tag is log, of an interval"),
        ("a.x=range(3,1)", "there are no values"),
        ("a.x=glob(*)", "this function is not supported"),
        ("a.x=interval(1", "a.x=interval(1: "),
        ("a.x=3", "--search has no param to vary"),
    ],
)
def test_space_that_cannot_be_searched_is_an_error(set_param, message):
    with pytest.raises(ParamsError) as error:
        read_space([set_param], optuna)

    assert message in str(error.value)
