"""Tests of the search for the largest number of layers that fits on the device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.config import EngineConfig
from spac.config.values import GpuLayers
from spac.errors import OutOfMemoryError
from spac.model.fit_layers import load_what_fits


@given(n_layer=st.integers(1, 70), data=st.data())
def test_the_most_layers_are_loaded(n_layer, data):
    fits = data.draw(st.integers(0, n_layer - 1))
    loaded = []

    def load(config):
        assert not loaded
        loaded.append(config)
        count = config.gpu_layers.count
        if count is None or count > fits:
            raise OutOfMemoryError("too many layers")

    config = EngineConfig(target="m.gguf", gpu_layers=GpuLayers.parse("auto"))
    load_what_fits(config, n_layer, load, loaded.clear)
    assert loaded[0].gpu_layers.count == fits


def test_a_model_that_fits_is_loaded_once():
    loads = []
    load_what_fits(EngineConfig(target="m.gguf"), 48, loads.append, loads.clear)
    assert loads == [EngineConfig(target="m.gguf")]


@pytest.mark.parametrize(("fits", "layers"), [(2, None), (1, None), (0, 2)])
def test_fewer_generations_at_once_come_before_fewer_layers(fits, layers):
    """Contexts of more generations than `fits` do not fit beside all layers."""
    loads, loaded = [], []

    def load(config):
        assert not loaded
        loads.append(config)
        loaded.append(config)
        if config.fitting_parallel(8192) > fits and (config.gpu_layers.count is None):
            raise OutOfMemoryError("too many")
        if (config.gpu_layers.count or 0) > 2:
            raise OutOfMemoryError("too many layers")

    load_what_fits(EngineConfig(target="m.gguf", parallel=-1, gpu_layers="auto"), 4, load, loaded.clear)
    assert loaded[0].fitting_parallel(8192) == (fits or 4)
    assert loaded[0].gpu_layers.count == layers
    assert [each.n_parallel for each in loads[:2]] == [4, 2]


def test_a_given_number_of_generations_stays():
    def load(config):
        assert config.n_parallel == 4
        raise OutOfMemoryError("no room")

    with pytest.raises(OutOfMemoryError):
        load_what_fits(EngineConfig(target="m.gguf", parallel=4, gpu_layers="all"), 4, load, lambda: None)
