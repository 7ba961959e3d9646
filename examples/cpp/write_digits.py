"""Writes scikit-learn's handwritten digits for digits.cc: one digit a line, its 64 pixels from 0 to 16 and then what it is.

    python examples/cpp/write_digits.py digits.txt
"""

import sys

import numpy
from sklearn.datasets import load_digits

if len(sys.argv) != 2:
    sys.exit(__doc__)
data = load_digits()
numpy.savetxt(sys.argv[1], numpy.column_stack([data.data, data.target]), fmt="%d")
