"""Data to try things on, and readers for data of your own."""

from nestax.datasets.corruption import corrupt as corrupt
from nestax.datasets.examples import Examples as Examples
from nestax.datasets.examples import read_examples as read_examples
from nestax.datasets.fetching import available as available
from nestax.datasets.fetching import fetch as fetch
from nestax.datasets.libsvm_format import libsvm as libsvm
from nestax.datasets.returns import Returns as Returns
from nestax.datasets.returns import industry as industry
from nestax.datasets.returns import read_returns as read_returns
from nestax.datasets.synthetic import synthetic_returns as synthetic_returns
from nestax.problems.few_shot.tasks import sinusoids as sinusoids
