/* Stands in for libcuda.so.1: the part of the driver that Farkas uses, in the host's memory.
 *
 * A module's image is the path of a library made by `runtime.gpu.emulator`, with the shape of each
 * kernel beside it.  What is asynchronous is done late, when somebody waits for it, so that what
 * forgets to wait reads what was there before.  Every call is written down; see `stand_in_calls`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719,
       UNSUPPORTED = 900, INVALIDATED = 901, IMPLICIT = 906 };

typedef int (*launch_t)(const int64_t *, void *const *, const int64_t *, int);
struct function { launch_t launch; int64_t shape[5]; char name[256]; };
struct work {
  enum { COPY, FETCH, LAUNCH } kind;
  uint64_t stream;
  void *to, *from;
  size_t bytes;
  struct function *function;
  int64_t grid[3], sizes[64];
  void *tensors[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int depth;  /* of the stack of contexts */
static __thread int devices[64];  /* their devices */
static char calls[1 << 20];
static size_t written;
static struct { char *start; size_t bytes; int device; } memory[4096];
static size_t taken;
static struct work *queue;
static size_t waiting, room;
struct graph { struct work *works; size_t count; };
static struct graph *recording;  /* what is launched on `recorded` goes there */
static uint64_t recorded;
static int waits_for_default;  /* whether the stream that was made last does */
static int disturbed;  /* whether the recording is no use any more */
static size_t graphs;  /* that nobody has destroyed */

static void note(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (written + 512 < sizeof calls)
    written += (size_t)vsnprintf(calls + written, 512, format, arguments);
  va_end(arguments);
}
const char *stand_in_calls(void) { return calls; }
void stand_in_forget(void) { written = 0, calls[0] = 0; }
size_t stand_in_memory(void) { return taken; }
size_t stand_in_graphs(void) { return graphs; }

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

/* Whether so many bytes lie in memory that is taken. */
static int inside(void *start, size_t bytes) {
  for (size_t n = 0; n < 4096; n++)
    if (memory[n].start && (char *)start >= memory[n].start &&
        (char *)start + bytes <= memory[n].start + memory[n].bytes)
      return 1;
  return bytes == 0;
}

/* Does what waits on a stream, in order; on all of them for the default one, as CUDA does. */
static int finish(uint64_t stream, int all) {
  size_t left = 0;
  int failed = 0;
  for (size_t n = 0; n < waiting; n++) {
    struct work *w = &queue[n];
    if (!all && w->stream != stream && w->stream != 0) {
      queue[left++] = *w;
    } else if (w->kind == LAUNCH) {
      failed |= w->function->launch(w->sizes, w->tensors, w->grid, 0);
    } else {
      memcpy(w->to, w->from, w->bytes);
      if (w->kind == COPY) free(w->from);
    }
  }
  waiting = left;
  return failed ? LAUNCH_FAILED : OK;
}

static struct work *later(int kind, uint64_t stream) {
  if (waiting == room) queue = realloc(queue, (room = room ? 2 * room : 64) * sizeof *queue);
  struct work *w = &queue[waiting++];
  memset(w, 0, sizeof *w);
  w->kind = kind, w->stream = stream;
  return w;
}

#define BEGIN(needs_context)                        \
  if ((needs_context) && !depth) return INVALID_CONTEXT; \
  pthread_mutex_lock(&lock)
/* The default one may not be, while a stream is recorded that waits for it. */
#define MAY_USE(stream) \
  if (recording && waits_for_default && (stream) == 0) END((disturbed = 1, IMPLICIT))
#define END(code)               \
  do {                          \
    int code_ = (code);         \
    pthread_mutex_unlock(&lock); \
    return code_;               \
  } while (0)

int cuInit(unsigned flags) { return (void)flags, (int)setting("STAND_IN_INIT", OK); }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuGetErrorString(int code, const char **text) {
  *text = code == NO_DEVICE ? "no CUDA-capable device is detected" :
          code == LAUNCH_FAILED ? "unspecified launch failure" :
          code == INVALID_IMAGE ? "device kernel image is invalid" : "some error";
  return OK;
}
int cuGetErrorName(int code, const char **text) { return (void)code, *text = "CUDA_ERROR", OK; }
int cuDeviceGetCount(int *count) { return *count = (int)setting("STAND_IN_DEVICES", 2), OK; }
int cuDeviceGet(int *device, int number) { return *device = number, OK; }
int cuDeviceGetName(char *name, int size, int device) {
  return snprintf(name, (size_t)size, "Stand-In %d", device), OK;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
  (void)device;
  /* the major number, of which 76 is the minor one; multiprocessors */
  *value = which == 75 ? 9 : which == 16 ? 114 : 0;
  return OK;
}
int cuDeviceComputeCapability(int *major, int *minor, int device) {
  return (void)device, *major = 9, *minor = 0, OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  note("retain %d\n", device);
  return *context = (void *)(intptr_t)(device + 1), OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, OK; }
int cuCtxPushCurrent_v2(void *context) {
  devices[depth++ % 64] = (int)(intptr_t)context - 1;
  return OK;
}
int cuCtxPopCurrent_v2(void **context) {
  *context = 0;
  return depth ? (depth--, OK) : INVALID_CONTEXT;
}
int cuCtxGetCurrent(void **context) { return *context = 0, OK; }
int stand_in_depth(void) { return depth; }
int cuCtxSynchronize(void) {
  BEGIN(1);
  note("wait all\n");
  if (recording) END((disturbed = 1, UNSUPPORTED));
  END(finish(0, 1));
}
int cuStreamCreate(uint64_t *stream, unsigned flags) {
  return waits_for_default = !flags, *stream = 0x77, OK;
}
int cuStreamDestroy_v2(uint64_t stream) { return (void)stream, OK; }
int cuStreamSynchronize(uint64_t stream) {
  BEGIN(1);
  note("wait %llu\n", (unsigned long long)stream);
  MAY_USE(stream);
  END(finish(stream, stream == 0));
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  BEGIN(1);
  if (bytes == 0) END(INVALID_VALUE);
  if ((long)(taken + bytes) > setting("STAND_IN_MEMORY", 1 << 30)) END(OUT_OF_MEMORY);
  size_t n = 0;
  while (n < 4096 && memory[n].start) n++;
  if (n == 4096) END(OUT_OF_MEMORY);
  memory[n].start = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memory[n].bytes = bytes;
  memory[n].device = devices[(depth - 1) % 64];
  memset(memory[n].start, 0xA5, bytes);
  taken += bytes;
  *address = (uint64_t)memory[n].start;
  note("allocate %zu\n", bytes);
  END(OK);
}
int cuMemFree_v2(uint64_t address) {
  BEGIN(1);
  for (size_t n = 0; n < 4096; n++)
    if (memory[n].start && memory[n].start == (char *)address) {
      note("free %zu\n", memory[n].bytes);
      taken -= memory[n].bytes;
      free(memory[n].start);
      memory[n].start = 0;
      END(OK);
    }
  END(INVALID_VALUE);
}
int cuPointerGetAttribute(int *number, int which, uint64_t address) {
  BEGIN(1);
  const char *managed = getenv("STAND_IN_MANAGED");
  for (size_t n = 0; (which == 8 || which == 9) && n < 4096; n++)
    if (memory[n].start && (char *)address >= memory[n].start &&
        (char *)address < memory[n].start + memory[n].bytes)
      END((*number = which == 8 ? managed != 0 : memory[n].device, OK));
  END(INVALID_VALUE);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, uint64_t stream) {
  BEGIN(1);
  if (!inside((void *)to, bytes)) END(INVALID_VALUE);
  note("write %zu stream %llu\n", bytes, (unsigned long long)stream);
  struct work *w = later(COPY, stream);
  w->to = (void *)to, w->bytes = bytes;
  w->from = memcpy(malloc(bytes), from, bytes);  /* pageable memory is read at once */
  END(OK);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, uint64_t stream) {
  BEGIN(1);
  if (!inside((void *)from, bytes)) END(INVALID_VALUE);
  note("read %zu stream %llu\n", bytes, (unsigned long long)stream);
  struct work *w = later(FETCH, stream);
  w->to = to, w->from = (void *)from, w->bytes = bytes;
  END(OK);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, uint64_t stream) {
  BEGIN(1);
  if (!inside((void *)from, bytes) || !inside((void *)to, bytes)) END(INVALID_VALUE);
  note("copy %zu stream %llu\n", bytes, (unsigned long long)stream);
  struct work *w = later(FETCH, stream);
  w->to = (void *)to, w->from = (void *)from, w->bytes = bytes;
  END(OK);
}

int cuModuleLoadData(void **module, const void *image) {
  BEGIN(1);
  *module = dlopen(image, RTLD_NOW | RTLD_LOCAL);
  END(*module ? OK : INVALID_IMAGE);
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, void *options, void **values) {
  return (void)n, (void)options, (void)values, cuModuleLoadData(module, image);
}
int cuModuleUnload(void *module) {
  BEGIN(1);
  (void)module;
  note("unload\n");
  END(OK);
}
int cuModuleGetFunction(struct function **function, void *module, const char *name) {
  BEGIN(1);
  char symbol[300];
  snprintf(symbol, sizeof symbol, "%s_launch", name);
  void *launch = dlsym(module, symbol);
  snprintf(symbol, sizeof symbol, "%s_shape", name);
  int64_t *shape = dlsym(module, symbol);
  if (!launch || !shape) END(NOT_FOUND);
  struct function *f = calloc(1, sizeof *f);
  memcpy(&f->launch, &launch, sizeof launch);
  memcpy(f->shape, shape, sizeof f->shape);
  snprintf(f->name, sizeof f->name, "%s", name);
  *function = f;
  END(OK);
}
int cuFuncSetBlockShape(void *function, int x, int y, int z) {
  return (void)function, (void)x, (void)y, (void)z, OK;
}
int cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, uint64_t stream, void **parameters,
                   void **extra) {
  BEGIN(1);
  const int64_t count = f->shape[0] + f->shape[1];
  int64_t values[128];
  if (shared || count > 64) END(INVALID_VALUE);
  if (bx != f->shape[2] || by != f->shape[3] || bz != f->shape[4]) END(INVALID_VALUE);
  if (!gx || gy > 65535 || !gy || gz > 65535 || !gz) END(INVALID_VALUE);
  MAY_USE(stream);
  if (parameters) {
    for (int64_t n = 0; n < count; n++) values[n] = *(int64_t *)parameters[n];
  } else {  /* 1: a buffer follows, 2: its size, 0: the end */
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) END(INVALID_VALUE);
    if (*(size_t *)extra[3] != 8 * (size_t)count) END(INVALID_VALUE);
    memcpy(values, extra[1], 8 * (size_t)count);
  }
  for (int64_t n = f->shape[0]; n < count; n++)
    if (values[n] && !inside((void *)values[n], 1)) END(INVALID_VALUE);
  struct work *w;
  if (recording && stream == recorded) {
    recording->works = realloc(recording->works, (recording->count + 1) * sizeof *w);
    w = &recording->works[recording->count++];
    memset(w, 0, sizeof *w);
    w->kind = LAUNCH;
  } else {
    w = later(LAUNCH, stream);
  }
  w->function = f;
  w->grid[0] = gx, w->grid[1] = gy, w->grid[2] = gz;
  for (int64_t n = 0; n < f->shape[0]; n++) w->sizes[n] = values[n];
  for (int64_t n = 0; n < f->shape[1]; n++) w->tensors[n] = (void *)values[f->shape[0] + n];
  note("launch %s grid %u %u %u block %u %u %u stream %llu\n", f->name, gx, gy, gz, bx, by, bz,
       (unsigned long long)stream);
  END(OK);
}

int cuStreamBeginCapture_v2(uint64_t stream, int mode) {
  BEGIN(1);
  if (setting("STAND_IN_RECORDS", 1) == 0 || stream == 0 || recording || mode != 1)
    END(INVALID_VALUE);
  recording = calloc(1, sizeof *recording), recorded = stream, graphs++, disturbed = 0;
  note("record\n");
  END(OK);
}
int cuStreamEndCapture(uint64_t stream, struct graph **graph) {
  BEGIN(1);
  if (!recording || stream != recorded) END(INVALID_VALUE);
  *graph = recording, recording = 0;
  if (disturbed) END((free((*graph)->works), free(*graph), graphs--, *graph = 0, INVALIDATED));
  END(OK);
}
/* A graph that is ready is a copy, so that the first may be destroyed. */
int cuGraphInstantiateWithFlags(struct graph **ready, struct graph *graph, unsigned long long f) {
  BEGIN(1);
  if (f) END(INVALID_VALUE);
  const size_t bytes = graph->count * sizeof *graph->works;
  *ready = calloc(1, sizeof **ready), graphs++;
  (*ready)->count = graph->count;
  (*ready)->works = memcpy(malloc(bytes + 1), graph->works, bytes);
  END(OK);
}
int cuGraphDestroy(struct graph *graph) {
  BEGIN(1);
  free(graph->works), free(graph), graphs--;
  END(OK);
}
int cuGraphExecDestroy(struct graph *graph) { return cuGraphDestroy(graph); }
int cuGraphLaunch(struct graph *graph, uint64_t stream) {
  BEGIN(1);
  for (size_t n = 0; n < graph->count; n++) {
    struct work *w = later(LAUNCH, stream);
    *w = graph->works[n];
    w->stream = stream;
  }
  note("start %zu launches stream %llu\n", graph->count, (unsigned long long)stream);
  END(OK);
}
