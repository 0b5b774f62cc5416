/* What XLA calls for a kernel: one function for all of them.

   A call site has three attributes.  `kernel` is the name, `source` what the kernel is made of, and
   `sizes` the number of sizes that no shape shows, then their values; -1 says that the last operand
   has them, where they follow from shapes that were symbolic.

   How a kernel is called depends on these sizes and on the shapes of operands and results, which
   are its key.  Keys that this process does not know are asked for, once. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "xla/ffi/api/c_api.h"

typedef void fk_kernel(int32_t threads, const int64_t *sizes, void *const *tensors);
typedef int fk_ask(
  const char *name, int64_t name_length, const char *source, int64_t source_length,
  const int64_t *key, int64_t count, char *message, int64_t room
);

enum { FK_MOST_TENSORS = 4096, FK_MOST_KEY = 1 << 14, FK_ALIGNMENT = 64, FK_MOST_SPARE = 64 << 20, FK_BUCKETS = 1 << 10 };

/* How a kernel is called with shapes.  `plan` has threads, bytes of workspace, and lists that begin
   with their length: the sizes, the operands that are passed, pairs of a result and the operand
   that it begins as, and the offsets of temporaries in the workspace. */
typedef struct fk_entry {
  const struct fk_entry *next;
  fk_kernel *run;
  char name[64];
  int64_t count; /* of the key */
  const int64_t *plan;
  int64_t key[];
} fk_entry;
/* Entries are added, and never change. */
static const fk_entry *fk_known[FK_BUCKETS];
static fk_ask *fk_asked;

static size_t fk_bucket(const char *name, size_t length, const int64_t *key, int64_t count)
{
  uint64_t hash = 14695981039346656037u;
  for (size_t k = 0; k < length; k++) hash = (hash ^ (uint8_t)name[k]) * 1099511628211u;
  for (int64_t k = 0; k < count; k++) hash = (hash ^ (uint64_t)key[k]) * 1099511628211u;
  return (hash ^ hash >> 32) % FK_BUCKETS;
}

/* Add a kernel for a key; the caller sees to it that one thread does this at a time.  0 if it is
   done. */
int fk_add(
  const char *name, fk_kernel *run, const int64_t *key, int64_t count,
  const int64_t *plan, int64_t length
)
{
  if (strlen(name) >= sizeof ((fk_entry *)0)->name) return 1;
  fk_entry *made = malloc(sizeof *made + (size_t)(count + length) * sizeof *key);
  if (made == NULL) return 1;
  const fk_entry **first = &fk_known[fk_bucket(name, strlen(name), key, count)];
  made->next = *first;
  made->run = run;
  strcpy(made->name, name);
  made->count = count;
  memcpy(made->key, key, (size_t)count * sizeof *key);
  memcpy(made->key + count, plan, (size_t)length * sizeof *plan);
  made->plan = made->key + count;
  __atomic_store_n(first, made, __ATOMIC_RELEASE);
  return 0;
}

/* What is called for keys that are not known: it adds an entry, or writes a message. */
void fk_ask_for(fk_ask *asked) { fk_asked = asked; }

static const fk_entry *
fk_find(const XLA_FFI_ByteSpan *name, const int64_t *key, int64_t count)
{
  const fk_entry **first = &fk_known[fk_bucket(name->ptr, name->len, key, count)];
  const fk_entry *entry = __atomic_load_n(first, __ATOMIC_ACQUIRE);
  for (; entry != NULL; entry = entry->next)
    if (entry->count == count && memcmp(entry->key, key, (size_t)count * sizeof *key) == 0
        && strlen(entry->name) == name->len && memcmp(entry->name, name->ptr, name->len) == 0)
      return entry;
  return NULL;
}

static XLA_FFI_Error *fk_error(const XLA_FFI_CallFrame *frame, const char *message)
{
  XLA_FFI_Error_Create_Args made = {
    .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
    .message = message,
    .errc = XLA_FFI_Error_Code_FAILED_PRECONDITION,
  };
  return frame->api->XLA_FFI_Error_Create(&made);
}

static const void *fk_attribute(const XLA_FFI_CallFrame *frame, const char *name)
{
  for (int64_t k = 0; k < frame->attrs.size; k++) {
    const XLA_FFI_ByteSpan *own = frame->attrs.names[k];
    if (own->len == strlen(name) && memcmp(own->ptr, name, own->len) == 0)
      return frame->attrs.attrs[k];
  }
  return NULL;
}

static size_t fk_bytes(const XLA_FFI_Buffer *buffer)
{
  static const uint8_t widths[] = {
    [XLA_FFI_DataType_PRED] = 1, [XLA_FFI_DataType_S8] = 1, [XLA_FFI_DataType_U8] = 1,
    [XLA_FFI_DataType_S16] = 2, [XLA_FFI_DataType_U16] = 2, [XLA_FFI_DataType_F16] = 2,
    [XLA_FFI_DataType_BF16] = 2, [XLA_FFI_DataType_S32] = 4, [XLA_FFI_DataType_U32] = 4,
    [XLA_FFI_DataType_F32] = 4, [XLA_FFI_DataType_S64] = 8, [XLA_FFI_DataType_U64] = 8,
    [XLA_FFI_DataType_F64] = 8,
  };
  size_t count = (size_t)buffer->dtype < sizeof widths ? widths[buffer->dtype] : 0;
  for (int64_t k = 0; k < buffer->rank; k++) count *= (size_t)buffer->dims[k];
  return count;
}

/* Add rank and extents of buffers to a key.  Returns its length, 0 if it gets too long. */
static int64_t fk_shapes(void *const *buffers, int64_t number, int64_t *key, int64_t count)
{
  for (int64_t k = 0; k < number; k++) {
    const XLA_FFI_Buffer *buffer = buffers[k];
    if (count == 0 || count + buffer->rank >= FK_MOST_KEY) return 0;
    key[count++] = buffer->rank;
    for (int64_t axis = 0; axis < buffer->rank; axis++) key[count++] = buffer->dims[axis];
  }
  return count;
}

/* The key of a call: how many sizes, these, then rank and extents of each operand and result.
   Returns its length, 0 if it has none. */
static int64_t fk_key(const XLA_FFI_CallFrame *frame, int64_t *key)
{
  const XLA_FFI_Array *given = fk_attribute(frame, "sizes");
  if (given == NULL || given->dtype != XLA_FFI_DataType_S64 || given->size == 0) return 0;
  const int64_t *values = given->data;
  int64_t operands = frame->args.size, count = 0;
  if (*values < 0) {
    if (operands == 0) return 0;
    const XLA_FFI_Buffer *last = frame->args.args[--operands];
    const bool wide = last->dtype == XLA_FFI_DataType_S64;
    if (last->rank != 1 || last->dims[0] >= FK_MOST_KEY) return 0;
    if (!wide && last->dtype != XLA_FFI_DataType_S32) return 0;
    key[count++] = last->dims[0];
    for (int64_t k = 0; k < last->dims[0]; k++)
      key[count++] = wide ? ((const int64_t *)last->data)[k] : ((const int32_t *)last->data)[k];
  } else {
    if (given->size >= FK_MOST_KEY) return 0;
    memcpy(key, values, given->size * sizeof *key);
    count = (int64_t)given->size;
  }
  count = fk_shapes(frame->args.args, operands, key, count);
  return fk_shapes(frame->rets.rets, frame->rets.size, key, count);
}

/* A block of memory for temporaries, with its size in front. */
typedef struct { _Alignas(FK_ALIGNMENT) size_t bytes; } fk_block;
/* One that no call uses: new memory would cost a page fault for each page. */
static fk_block *fk_spare;

static fk_block *fk_take(size_t bytes)
{
  fk_block *block = __atomic_exchange_n(&fk_spare, NULL, __ATOMIC_ACQ_REL);
  if (block != NULL && block->bytes >= bytes) return block;
  free(block);
  block = aligned_alloc(FK_ALIGNMENT, sizeof *block + bytes);
  if (block != NULL) block->bytes = bytes;
  return block;
}

static void fk_give(fk_block *block)
{
  if (block != NULL && block->bytes <= FK_MOST_SPARE)
    block = __atomic_exchange_n(&fk_spare, block, __ATOMIC_ACQ_REL);
  free(block);
}

XLA_FFI_Error *fk_call(XLA_FFI_CallFrame *frame)
{
  XLA_FFI_Metadata_Extension *asked = (void *)frame->extension_start;
  if (asked != NULL && asked->extension_base.type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata *about = asked->metadata;
    about->api_version.major_version = XLA_FFI_API_MAJOR;
    about->api_version.minor_version = XLA_FFI_API_MINOR;
    return NULL;
  }
  const XLA_FFI_ByteSpan *name = fk_attribute(frame, "kernel");
  const XLA_FFI_ByteSpan *source = fk_attribute(frame, "source");
  int64_t key[FK_MOST_KEY];
  const int64_t count = fk_key(frame, key);
  if (name == NULL || source == NULL || count == 0)
    return fk_error(frame, "the call is not one of this version of Farkas");
  const fk_entry *entry = fk_find(name, key, count);
  if (entry == NULL) {
    char message[2048] = "the kernel cannot be found";
    if (fk_asked(name->ptr, (int64_t)name->len, source->ptr, (int64_t)source->len, key, count,
                 message, sizeof message - 1))
      return fk_error(frame, message);
    entry = fk_find(name, key, count);
    if (entry == NULL) return fk_error(frame, message);
  }

  const int64_t *next = entry->plan;
  const int32_t threads = (int32_t)*next++;
  const size_t bytes = (size_t)*next++;
  const int64_t *sizes = next + 1;
  next = sizes + *next;
  void *tensors[FK_MOST_TENSORS];
  int64_t filled = 0;
  const int64_t passed = *next++;
  const int64_t *pairs = next + passed;
  const int64_t temporaries = pairs[1 + 2 * *pairs];
  if (passed + frame->rets.size + temporaries > FK_MOST_TENSORS)
    return fk_error(frame, "the kernel has too many tensors");
  for (int64_t k = 0; k < passed; k++)
    tensors[filled++] = ((XLA_FFI_Buffer *)frame->args.args[*next++])->data;
  for (int64_t k = 0; k < frame->rets.size; k++)
    tensors[filled++] = ((XLA_FFI_Buffer *)frame->rets.rets[k])->data;
  const int64_t copied = *next++;
  for (int64_t k = 0; k < copied; k++, next += 2) {
    const XLA_FFI_Buffer *to = frame->rets.rets[next[0]], *from = frame->args.args[next[1]];
    if (to->data != from->data) memcpy(to->data, from->data, fk_bytes(to));
  }
  next++; /* the number of temporaries */
  fk_block *block = NULL;
  if (temporaries > 0) {
    block = fk_take(bytes);
    if (block == NULL) return fk_error(frame, "there is not enough memory for temporaries");
    for (int64_t k = 0; k < temporaries; k++) tensors[filled++] = (char *)(block + 1) + *next++;
  }
  entry->run(threads, sizes, tensors);
  fk_give(block);
  return NULL;
}
