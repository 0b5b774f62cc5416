/* Calls in one step: the arrays of a call are compared with plans of earlier calls, the outputs are
 * made, and the kernel runs.  Whatever is not exactly as a plan says is left to Python, which
 * makes it fit or says what is wrong: here nothing is converted and nothing is raised.
 *
 * Declared below is the stable ABI of CPython, and of numpy's arrays the fields and the function
 * that extensions built years ago use; fast_call.py checks both before it calls anything here.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct object { intptr_t references; struct object *type; } object;

typedef struct {
    object head;
    char *data;
    int rank;
    intptr_t *shape, *strides;
    object *base, *dtype;
    int flags;
} array;

typedef struct {
    const char *name;
    object *(*call)(object *, object *const *, intptr_t);
    int flags;
    const char *text;
} method;

extern object PyTuple_Type, PyLong_Type, _Py_NoneStruct, _Py_NotImplementedStruct;
void Py_IncRef(object *);
void Py_DecRef(object *);
intptr_t PyList_Size(object *);
object *PyList_GetItem(object *, intptr_t);
char *PyBytes_AsString(object *);
object *PyTuple_New(intptr_t);
intptr_t PyTuple_Size(object *);
object *PyTuple_GetItem(object *, intptr_t);
int PyTuple_SetItem(object *, intptr_t, object *);
long long PyLong_AsLongLong(object *);
object *PyErr_Occurred(void);
void PyErr_Clear(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);

typedef void kernel(int32_t threads, const int64_t *sizes, void *const *tensors);
typedef object *allocator(int rank, const intptr_t *shape, object *dtype, int fortran);
typedef object *exchanger(object *handler);

enum { FASTCALL = 0x80, READABLE = 0x1 | 0x100, WRITEABLE = READABLE | 0x400, MAX_THREADS = 4096 };
enum { LARGE = 1 << 18 }; /* bytes of results whose memory is kept, see kept_memory.c */
#define NONE (&_Py_NoneStruct)

/* numpy.ndarray, PyArray_Empty, PyDataMem_SetHandler, and what that is given for large results. */
static object *array_type;
static allocator *empty;
static exchanger *set_handler;
static object *large_memory;
void fk_keep_at_most(size_t bytes);

/* A plan, as `record` in fast_call.py writes it: this, then the words below in this order. */
typedef struct {
    int64_t function, threads, little, inputs, outputs, given, sizes, more, workspace;
    /* little: whether it takes so little time that other threads of Python may wait meanwhile; to
     * let them run may mean to wait for milliseconds.
     * For each input and output: its `tensor`, then its extents.
     * given: values of sizes that a call must give.
     * sizes: of all sizes.
     * more: addresses behind those of the outputs, from the workspace on if there is any. */
    int64_t words[];
} plan;

typedef struct {
    int64_t dtype, bytes, rank;
    int64_t scalar; /* of inputs: the type of numpy's scalars that will do, or 0 */
    int64_t other;  /* of inputs: whether they are passed; of outputs: the input updated, or -1 */
    int64_t shape[];
} tensor;

static const tensor *next(const tensor *t) { return (const tensor *)&t->shape[t->rank]; }

static object *unknown(void)
{
    Py_IncRef(&_Py_NotImplementedStruct);
    return &_Py_NotImplementedStruct;
}

static int whole(object *value, int64_t *number)
{
    if (value->type != &PyLong_Type) return 0;
    *number = PyLong_AsLongLong(value);
    if (*number != -1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

static int is_array(object *value, const tensor *t, int flags)
{
    if (value->type != array_type) return 0;
    array *a = (array *)value;
    if ((int64_t)a->dtype != t->dtype || a->rank != t->rank || (a->flags & flags) != flags) return 0;
    for (int64_t n = 0; n < t->rank; n++)
        if (a->shape[n] != t->shape[n]) return 0;
    return 1;
}

/* The tensors of the outputs if the inputs and sizes of a call are those of a plan. */
static const tensor *match(const plan *p, object *inputs, object *sizes)
{
    if (PyTuple_Size(inputs) != p->inputs) return NULL;
    const tensor *t = (const tensor *)p->words;
    for (int64_t n = 0; n < p->inputs; n++, t = next(t)) {
        object *value = PyTuple_GetItem(inputs, n);
        if (!is_array(value, t, READABLE) && (!t->scalar || (int64_t)value->type != t->scalar))
            return NULL;
    }
    const tensor *outputs = t;
    for (int64_t n = 0; n < p->outputs; n++) t = next(t);
    if (p->given != (sizes == NONE ? 0 : PyTuple_Size(sizes))) return NULL;
    for (int64_t n = 0; n < p->given; n++) {
        int64_t number;
        if (!whole(PyTuple_GetItem(sizes, n), &number) || number != ((const int64_t *)t)[n])
            return NULL;
    }
    return outputs;
}

static char *place_of(object *value)
{
    /* The value of a scalar lies behind its head. */
    return value->type == array_type ? ((array *)value)->data : (char *)value + sizeof(object);
}

static int overlap(const char *a, int64_t bytes_a, const char *b, int64_t bytes_b)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return bytes_a && bytes_b && x < y + (uint64_t)bytes_b && y < x + (uint64_t)bytes_a;
}

/* Whether outputs share no memory with anything, but for an update in place. */
static int apart(const plan *p, char **in, char **out)
{
    const tensor *t = (const tensor *)p->words, *outputs = t;
    for (int64_t n = 0; n < p->inputs; n++) outputs = next(outputs);
    for (int64_t i = 0; i < p->inputs; i++, t = next(t)) {
        const tensor *o = outputs;
        for (int64_t n = 0; n < p->outputs; n++, o = next(o)) {
            if (o->other == i && in[i] == out[n]) continue;
            if (overlap(in[i], t->bytes, out[n], o->bytes)) return 0;
        }
    }
    for (int64_t i = 0; i < p->outputs; i++, t = next(t)) {
        const tensor *o = outputs;
        for (int64_t n = 0; n < i; n++, o = next(o))
            if (overlap(out[i], t->bytes, out[n], o->bytes)) return 0;
    }
    return 1;
}

/* A new array; NULL if there is no memory for it. */
static object *new_array(const tensor *t)
{
    object *before = t->bytes < LARGE ? NULL : set_handler(large_memory);
    Py_IncRef((object *)t->dtype); /* which the next line takes */
    object *made = empty((int)t->rank, (const intptr_t *)t->shape, (object *)t->dtype, 0);
    if (!made) PyErr_Clear();
    if (before) {
        Py_DecRef(set_handler(before));
        Py_DecRef(before);
    }
    return made;
}

/* The outputs of a call, given or new, each with a reference; 0 if they cannot be had. */
static int make_outputs(const plan *p, const tensor *t, object *given, object **made)
{
    int several = given->type == &PyTuple_Type;
    size_t large = 0;
    if (given != NONE && (several ? PyTuple_Size(given) : 1) != p->outputs) return 0;
    for (int64_t n = 0; n < p->outputs; n++, t = next(t)) {
        object *value;
        if (given == NONE) {
            value = new_array(t);
            if (t->bytes >= LARGE) large += (size_t)t->bytes;
        } else {
            value = several ? PyTuple_GetItem(given, n) : given;
            if (!is_array(value, t, WRITEABLE)) value = NULL;
            if (value) Py_IncRef(value);
        }
        if (!value) {
            while (n-- > 0) Py_DecRef(made[n]);
            return 0;
        }
        made[n] = value;
    }
    if (large) fk_keep_at_most(large);
    return 1;
}

/* Run a plan on the places of inputs and outputs; 0 if there is no memory for its workspace. */
static int execute(const plan *p, const tensor *outputs, char **in, char **out, int32_t threads)
{
    char *tensors[p->inputs + p->outputs + p->more + 1], **next_place = tensors;
    const tensor *t = (const tensor *)p->words;
    for (int64_t n = 0; n < p->inputs; n++, t = next(t))
        if (t->other) *next_place++ = in[n];
    for (int64_t n = 0; n < p->outputs; n++, t = next(t)) *next_place++ = out[n];
    const int64_t *sizes = (const int64_t *)t + p->given, *more = sizes + p->sizes;
    char *block = NULL;
    if (p->workspace && !(block = aligned_alloc(64, (size_t)p->workspace))) return 0;
    for (int64_t n = 0; n < p->more; n++)
        *next_place++ = (char *)((uintptr_t)block + (uintptr_t)more[n]);
    void *thread = p->little ? NULL : PyEval_SaveThread();
    for (int64_t n = 0; n < p->outputs; n++, outputs = next(outputs))
        if (outputs->other >= 0 && in[outputs->other] != out[n])
            memcpy(out[n], in[outputs->other], (size_t)outputs->bytes);
    ((kernel *)(uintptr_t)p->function)(threads, sizes, (void *const *)tensors);
    if (thread) PyEval_RestoreThread(thread);
    free(block);
    return 1;
}

/* A tuple that takes the references of the outputs; NULL if there is no memory for it. */
static object *collect(const plan *p, object **made)
{
    object *result = PyTuple_New(p->outputs);
    if (!result) PyErr_Clear();
    for (int64_t n = 0; result && n < p->outputs; n++) PyTuple_SetItem(result, n, made[n]);
    return result;
}

static object *call(const plan *p, const tensor *outputs, object *inputs, object *given,
                    int32_t threads)
{
    object *made[p->outputs + 1], *result = NULL;
    char *in[p->inputs + 1], *out[p->outputs + 1];
    if (!make_outputs(p, outputs, given, made)) return unknown();
    for (int64_t n = 0; n < p->inputs; n++) in[n] = place_of(PyTuple_GetItem(inputs, n));
    for (int64_t n = 0; n < p->outputs; n++) out[n] = place_of(made[n]);
    if (given == NONE || apart(p, in, out)) result = p->outputs == 1 ? made[0] : collect(p, made);
    if (result && execute(p, outputs, in, out, threads)) return result;
    if (result && p->outputs != 1)
        Py_DecRef(result);
    else
        for (int64_t n = 0; n < p->outputs; n++) Py_DecRef(made[n]);
    return unknown();
}

/* run(inputs, out, threads, sizes), bound to a list of plans: the output or a tuple of outputs,
 * or NotImplemented.  `out` may be None, `threads` and `sizes` too. */
static object *run(object *plans, object *const *given, intptr_t count)
{
    if (count != 4 || given[0]->type != &PyTuple_Type) return unknown();
    if (given[3] != NONE && given[3]->type != &PyTuple_Type) return unknown();
    int64_t threads = 0;
    if (given[2] != NONE && (!whole(given[2], &threads) || threads < 1 || threads > MAX_THREADS))
        return unknown();
    for (intptr_t n = 0, many = PyList_Size(plans); n < many; n++) {
        object *held = PyList_GetItem(plans, n);
        const plan *p = (const plan *)PyBytes_AsString(held);
        const tensor *outputs = match(p, given[0], given[3]);
        if (!outputs) continue;
        Py_IncRef(held); /* another thread may forget the plan while the kernel runs */
        int32_t chosen = (int32_t)(threads ? threads : p->threads);
        object *result = call(p, outputs, given[0], given[1], chosen);
        Py_DecRef(held);
        return result;
    }
    return unknown();
}

static method definition = {"run", run, FASTCALL, "Run a kernel if the arguments fit a plan."};

/* What `PyCFunction_New` needs to make a function of `run`. */
method *fk_quick(object *type, allocator *function, exchanger *exchange, object *memory);
method *fk_quick(object *type, allocator *function, exchanger *exchange, object *memory)
{
    array_type = type;
    empty = function;
    set_handler = exchange;
    large_memory = memory;
    return &definition;
}

/* A kernel to try all this on: the sum of two numbers, the workspace and a size. */
kernel fk_quick_probe;
void fk_quick_probe(int32_t threads, const int64_t *sizes, void *const *tensors)
{
    *(float *)tensors[3] = *(float *)tensors[0] + *(float *)tensors[1];
    *(float *)tensors[2] = *(float *)tensors[3] + (float)(sizes[0] + threads);
}
