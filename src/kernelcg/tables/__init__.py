"""Models of tables: files are read, columns are encoded, a process is fitted, and predictions become tables again."""

from kernelcg.tables.columns import Encoding
from kernelcg.tables.fitting import Fitted, fit_table
from kernelcg.tables.model import TableModel, load_table_model
from kernelcg.tables.reading import Table, TableError, read_table
from kernelcg.tables.task import Task

__all__ = [
    "Encoding",
    "Fitted",
    "Table",
    "TableError",
    "TableModel",
    "Task",
    "fit_table",
    "load_table_model",
    "read_table",
]
