from tests.datasets.conftest import machine as machine
