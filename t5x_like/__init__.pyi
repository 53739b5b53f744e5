from t5x_like.library.model import Model as Model
from t5x_like.library.model import load as load
from t5x_like.library.task import Task as Task
from t5x_like.runs import Run as Run
