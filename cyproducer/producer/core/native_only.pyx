"""Prevents Python code from creating instances of a class whose methods follow pointers that native code sets.

Python can create an instance of a Cython class in two ways. Calling the class is refused by an `__init__` that
raises TypeError. `cls.__new__(cls)` runs no `__init__`, and `copy` and `pickle` use it as well; native_only()
refuses that.
"""


cdef extern from *:
    """
    static PyObject *cyp_refuse_new(PyObject *self, PyObject *args, PyObject *kwargs) {
        PyObject *cls = args != NULL && PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
        (void)self, (void)kwargs;
        PyErr_Format(PyExc_TypeError, "%s objects are made by cyproducer; they cannot be created, copied or pickled",
                     cls != NULL && PyType_Check(cls) ? ((PyTypeObject *)cls)->tp_name : "these");
        return NULL;
    }
    static PyMethodDef cyp_refuse_new_method = {
        "__new__", (PyCFunction)(void (*)(void))cyp_refuse_new, METH_VARARGS | METH_KEYWORDS, NULL
    };
    /* Python code reaches only the entry `__new__` of the type's dictionary; Cython calls tp_new directly. */
    static int cyp_native_only(PyTypeObject *type) {
        PyObject *refuse = PyCFunction_New(&cyp_refuse_new_method, NULL);
        int failed = refuse == NULL || PyDict_SetItemString(type->tp_dict, "__new__", refuse) < 0;
        Py_XDECREF(refuse);
        PyType_Modified(type);
        return failed ? -1 : 0;
    }
    static void cyp_patchable(PyTypeObject *type) {
        type->tp_flags &= ~Py_TPFLAGS_IMMUTABLETYPE;
    }
    """
    int cyp_native_only(PyTypeObject *cls) except -1
    void cyp_patchable(PyTypeObject *cls) noexcept


cdef inline int native_only(object cls) except -1:
    """Make `cls.__new__(cls)` raise TypeError in Python code. Native code can still create instances."""
    return cyp_native_only(<PyTypeObject *>cls)


cdef inline void patchable(object cls) noexcept:
    """Let Python code replace attributes of `cls`, as `unittest.mock.patch.object` does.

    A Python subclass would allow that as well. But the interpreter calls a native method faster if the object's type
    is the type that defines the method.
    """
    cyp_patchable(<PyTypeObject *>cls)
