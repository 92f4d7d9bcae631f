"""Declares how the headers of rows are encoded, see header_sections.pyx."""

from cyproducer.producer.bulk.arrow cimport ArrowData
from cyproducer.producer.bulk.columns cimport Column


cdef Column header_column(object headers, Py_ssize_t rows)
cdef Column headers_of_lists(ArrowData lists)
