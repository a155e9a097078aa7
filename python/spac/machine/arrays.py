"""The types of numpy arrays, by the type of their elements."""

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
