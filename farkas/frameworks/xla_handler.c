/* What XLA calls for a kernel: one function for all of them, which finds the kernel by its name.

   A call site has two attributes: `kernel`, the name, and `plan`, numbers that follow from the
   shapes: threads, bytes of workspace, and lists that begin with their length: the sizes, the
   operands that are passed, pairs of a result and the operand that it begins as, and the offsets of
   temporaries in the workspace. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "xla/ffi/api/c_api.h"

typedef void fk_kernel(int32_t threads, const int64_t *sizes, void *const *tensors);

enum { FK_MOST_TENSORS = 4096, FK_ALIGNMENT = 64 };

/* The kernels that this process has loaded; entries are added, and never change. */
typedef struct fk_entry {
  const struct fk_entry *next;
  fk_kernel *run;
  char name[64];
} fk_entry;
static const fk_entry *fk_known;

/* Add a kernel; the caller sees to it that one thread does this at a time.  0 if it is done. */
int fk_add_kernel(const char *name, fk_kernel *run)
{
  if (strlen(name) >= sizeof ((fk_entry *)0)->name) return 1;
  fk_entry *made = malloc(sizeof *made);
  if (made == NULL) return 1;
  made->next = fk_known;
  made->run = run;
  strcpy(made->name, name);
  __atomic_store_n(&fk_known, made, __ATOMIC_RELEASE);
  return 0;
}

static fk_kernel *fk_find(const char *name, size_t length)
{
  const fk_entry *entry = __atomic_load_n(&fk_known, __ATOMIC_ACQUIRE);
  for (; entry != NULL; entry = entry->next)
    if (strlen(entry->name) == length && memcmp(entry->name, name, length) == 0) return entry->run;
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
  const XLA_FFI_Array *plan = fk_attribute(frame, "plan");
  fk_kernel *run = name == NULL ? NULL : fk_find(name->ptr, name->len);
  if (run == NULL || plan == NULL)
    return fk_error(frame, "the kernel is not loaded in this process: make the operator first");

  const int64_t *next = plan->data;
  const int32_t threads = (int32_t)*next++;
  const size_t bytes = (size_t)*next++;
  const int64_t *sizes = next + 1;
  next = sizes + *next;
  void *tensors[FK_MOST_TENSORS];
  int64_t count = 0;
  const int64_t passed = *next++;
  const int64_t *pairs = next + passed;
  const int64_t temporaries = pairs[1 + 2 * *pairs];
  if (passed + frame->rets.size + temporaries > FK_MOST_TENSORS)
    return fk_error(frame, "the kernel has too many tensors");
  for (int64_t k = 0; k < passed; k++)
    tensors[count++] = ((XLA_FFI_Buffer *)frame->args.args[*next++])->data;
  for (int64_t k = 0; k < frame->rets.size; k++)
    tensors[count++] = ((XLA_FFI_Buffer *)frame->rets.rets[k])->data;
  const int64_t copied = *next++;
  for (int64_t k = 0; k < copied; k++, next += 2) {
    const XLA_FFI_Buffer *to = frame->rets.rets[next[0]], *from = frame->args.args[next[1]];
    if (to->data != from->data) memcpy(to->data, from->data, fk_bytes(to));
  }
  next++; /* the number of temporaries */
  char *memory = NULL;
  if (temporaries > 0) {
    memory = aligned_alloc(FK_ALIGNMENT, bytes);
    if (memory == NULL) return fk_error(frame, "there is not enough memory for temporaries");
    for (int64_t k = 0; k < temporaries; k++) tensors[count++] = memory + *next++;
  }
  run(threads, sizes, tensors);
  free(memory);
  return NULL;
}
