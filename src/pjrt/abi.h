/* abi.h - the part of the PJRT C ABI that we call, in our own words. PJRT 0.106 to 0.117; slots never move, structs
 * only grow at their end, and every struct starts with its own size. tests/torch/test_pjrt_abi.py compares this file
 * with an independent description of the ABI. */
#ifndef TPU_PJRT_ABI_H
#define TPU_PJRT_ABI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Objects of the plugin; only ever pointers. */
typedef struct PJRT_Error PJRT_Error;
typedef struct PJRT_Event PJRT_Event;
typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_Executable PJRT_Executable;
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;
typedef struct PJRT_Buffer PJRT_Buffer;
typedef struct PJRT_ExecuteContext PJRT_ExecuteContext;
typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;

enum { PJRT_MAJOR = 0, PJRT_OLDEST_MINOR_TRIED = 106, PJRT_NEWEST_MINOR_TRIED = 117 };

/* The first fields of every struct. `ext` is a list of extensions; we pass none. */
#define PJRT_HEAD     \
  size_t struct_size; \
  void *ext

typedef struct {
  PJRT_HEAD;
  int major_version, minor_version;
} PJRT_Api_Version;

/* The table that GetPjrtApi gives; struct_size tells how many slots it has. */
typedef struct {
  PJRT_HEAD;
  PJRT_Api_Version version;
  void (*slots[])(void);
} PJRT_Api;

typedef enum {
  PJRT_CODE_CANCELLED = 1,
  PJRT_CODE_UNKNOWN = 2,
  PJRT_CODE_INVALID_ARGUMENT = 3,
  PJRT_CODE_RESOURCE_EXHAUSTED = 8,
  PJRT_CODE_FAILED_PRECONDITION = 9,
  PJRT_CODE_UNIMPLEMENTED = 12,
  PJRT_CODE_INTERNAL = 13
} PJRT_Error_Code;

typedef enum {
  PJRT_VALUE_STRING,
  PJRT_VALUE_INT64,
  PJRT_VALUE_INT64_LIST,
  PJRT_VALUE_FLOAT,
  PJRT_VALUE_BOOL
} PJRT_Value_Type;

typedef struct {
  PJRT_HEAD;
  const char *name; /* not NUL-terminated, like every text here */
  size_t name_size;
  uint32_t type; /* PJRT_Value_Type */
  union {
    const char *string_value;
    int64_t int64_value;
    const int64_t *int64_array_value;
    float float_value;
    bool bool_value;
  } u;
  size_t value_size; /* length of a string or list, else 1 */
} PJRT_NamedValue;

/* ---- errors, plugin ------------------------------------------------------------------------------------------- */

typedef struct {
  PJRT_HEAD;
  PJRT_Error *error;
} PJRT_Error_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  const PJRT_Error *error;
  const char *message; /* out; lives as long as the error */
  size_t message_size;
} PJRT_Error_Message_Args;

typedef struct {
  PJRT_HEAD;
  const PJRT_Error *error;
  uint32_t code; /* out, PJRT_Error_Code */
} PJRT_Error_GetCode_Args;

typedef struct {
  PJRT_HEAD;
} PJRT_Plugin_Initialize_Args;

typedef struct {
  PJRT_HEAD;
  const PJRT_NamedValue *attributes; /* out; lives as long as the plugin */
  size_t num_attributes;
} PJRT_Plugin_Attributes_Args;

/* ---- events ---------------------------------------------------------------------------------------------------- */

typedef struct {
  PJRT_HEAD;
  PJRT_Event *event;
} PJRT_Event_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Event *event;
  bool is_ready; /* out */
} PJRT_Event_IsReady_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Event *event;
} PJRT_Event_Await_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Event *event;
  void (*callback)(PJRT_Error *take_error, void *user_arg);
  void *user_arg;
} PJRT_Event_OnReady_Args;

/* ---- client, devices --------------------------------------------------------------------------------------------- */

typedef struct {
  PJRT_HEAD;
  const PJRT_NamedValue *create_options;
  size_t num_options;
  /* A key-value store shared by several processes; all NULL for one process. */
  void *kv_get_callback, *kv_get_user_arg, *kv_put_callback, *kv_put_user_arg;
  PJRT_Client *client; /* out */
  void *kv_try_get_callback, *kv_try_get_user_arg;
} PJRT_Client_Create_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
} PJRT_Client_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  const char *platform_name; /* out */
  size_t platform_name_size;
} PJRT_Client_PlatformName_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  const char *platform_version; /* out */
  size_t platform_version_size;
} PJRT_Client_PlatformVersion_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  PJRT_Device *const *addressable_devices; /* out; lives as long as the client */
  size_t num_addressable_devices;
} PJRT_Client_AddressableDevices_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Device *device;
  PJRT_DeviceDescription *device_description; /* out */
} PJRT_Device_GetDescription_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_DeviceDescription *device_description;
  const char *device_kind; /* out */
  size_t device_kind_size;
} PJRT_DeviceDescription_Kind_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_DeviceDescription *device_description;
  int id; /* out */
} PJRT_DeviceDescription_Id_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_DeviceDescription *device_description;
  size_t num_attributes;             /* out */
  const PJRT_NamedValue *attributes; /* out; lives as long as the description */
} PJRT_DeviceDescription_Attributes_Args;

#define PJRT_STAT(name) \
  int64_t name;         \
  bool name##_is_set

typedef struct {
  PJRT_HEAD;
  PJRT_Device *device;
  int64_t bytes_in_use; /* all out */
  PJRT_STAT(peak_bytes_in_use);
  PJRT_STAT(num_allocs);
  PJRT_STAT(largest_alloc_size);
  PJRT_STAT(bytes_limit);
  PJRT_STAT(bytes_reserved);
  PJRT_STAT(peak_bytes_reserved);
  PJRT_STAT(bytes_reservable_limit);
  PJRT_STAT(largest_free_block_bytes);
  PJRT_STAT(pool_bytes);
  PJRT_STAT(peak_pool_bytes);
  PJRT_STAT(peak_allocated_bytes);
} PJRT_Device_MemoryStats_Args;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct {
  PJRT_HEAD;
  const char *code;
  size_t code_size;
  const char *format; /* "mlir" */
  size_t format_size;
} PJRT_Program;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  const PJRT_Program *program;
  const char *compile_options; /* serialized CompileOptionsProto */
  size_t compile_options_size;
  PJRT_LoadedExecutable *executable; /* out */
} PJRT_Client_Compile_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_LoadedExecutable *executable;
} PJRT_LoadedExecutable_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_LoadedExecutable *loaded_executable;
  PJRT_Executable *executable; /* out; the caller's */
} PJRT_LoadedExecutable_GetExecutable_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Executable *executable;
} PJRT_Executable_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs; /* out */
} PJRT_Executable_NumOutputs_Args;

typedef struct {
  PJRT_HEAD;
  const PJRT_Executable *executable;
  const char *serialized_bytes; /* out; lives as long as serialized_executable */
  size_t serialized_bytes_size;
  PJRT_SerializedExecutable *serialized_executable; /* out */
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable *);
} PJRT_Executable_Serialize_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  const char *serialized_executable;
  size_t serialized_executable_size;
  PJRT_LoadedExecutable *loaded_executable; /* out */
  const char *overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  void *load_options;
} PJRT_Executable_DeserializeAndLoad_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Executable *executable;
  size_t num_properties; /* out */
  const PJRT_NamedValue *properties;
} PJRT_Executable_GetCostAnalysis_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Executable *executable;
  PJRT_Program *program; /* the caller's; code NULL: code_size is the answer; else it is filled */
} PJRT_Executable_OptimizedProgram_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Executable *executable;
  int64_t generated_code_size_in_bytes; /* all out */
  int64_t argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes, temp_size_in_bytes;
  int64_t host_generated_code_size_in_bytes;
  int64_t host_argument_size_in_bytes, host_output_size_in_bytes, host_alias_size_in_bytes, host_temp_size_in_bytes;
  int64_t peak_memory_in_bytes;
  int64_t total_size_in_bytes, total_allocation_bytes, indefinite_allocations, peak_unpadded_heap_bytes;
} PJRT_Executable_GetCompiledMemoryStats_Args;

typedef struct {
  PJRT_HEAD;
  void *send_callbacks, *recv_callbacks;
  size_t num_send_ops, num_recv_ops;
  int launch_id;
  const int64_t *non_donatable_input_indices;
  size_t num_non_donatable_input_indices;
  PJRT_ExecuteContext *context;
  const char *call_location;
  size_t num_tasks;
  int *task_ids;
  int64_t *incarnation_ids;
  void *multi_slice_config;
  bool use_major_to_minor_data_layout_for_callbacks;
  void *hlo_output_callbacks;
  size_t num_hlo_output_callbacks;
} PJRT_ExecuteOptions;

typedef struct {
  PJRT_HEAD;
  PJRT_LoadedExecutable *executable;
  PJRT_ExecuteOptions *options;
  PJRT_Buffer *const *const *argument_lists; /* [num_devices][num_args] */
  size_t num_devices, num_args;
  PJRT_Buffer **const *output_lists;   /* [num_devices][outputs], filled by the plugin */
  PJRT_Event **device_complete_events; /* [num_devices] or NULL */
  PJRT_Device *execute_device;         /* for a portable executable */
} PJRT_LoadedExecutable_Execute_Args;

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

typedef struct {
  PJRT_HEAD;
  const int64_t *minor_to_major;
  size_t minor_to_major_size;
  const int64_t *tile_dims;
  const size_t *tile_dim_sizes;
  size_t num_tiles;
} PJRT_Buffer_MemoryLayout_Tiled;

typedef struct {
  PJRT_HEAD;
  const int64_t *byte_strides;
  size_t num_byte_strides;
} PJRT_Buffer_MemoryLayout_Strides;

enum { PJRT_LAYOUT_TILED = 0, PJRT_LAYOUT_STRIDES = 1 };

typedef struct {
  PJRT_HEAD;
  union {
    PJRT_Buffer_MemoryLayout_Tiled tiled;
    PJRT_Buffer_MemoryLayout_Strides strides;
  } u;
  uint32_t type;
} PJRT_Buffer_MemoryLayout;

enum { PJRT_HOST_IMMUTABLE_ONLY_DURING_CALL = 0 };

typedef struct {
  PJRT_HEAD;
  PJRT_Client *client;
  const void *data;
  uint32_t type;
  const int64_t *dims;
  size_t num_dims;
  const int64_t *byte_strides; /* NULL: dense, row-major */
  size_t num_byte_strides;
  uint32_t host_buffer_semantics;
  PJRT_Device *device;
  PJRT_Memory *memory;
  PJRT_Buffer_MemoryLayout *device_layout;
  PJRT_Event *done_with_host_buffer; /* out; the caller's */
  PJRT_Buffer *buffer;               /* out */
} PJRT_Client_BufferFromHostBuffer_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
} PJRT_Buffer_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
  const int64_t *dims; /* out; lives as long as the buffer */
  size_t num_dims;
} PJRT_Buffer_Dimensions_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
  size_t on_device_size_in_bytes; /* out */
} PJRT_Buffer_OnDeviceSizeInBytes_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *src;
  PJRT_Buffer_MemoryLayout *host_layout;
  void *dst; /* NULL: dst_size is the answer */
  size_t dst_size;
  PJRT_Event *event; /* out; the caller's */
} PJRT_Buffer_ToHostBuffer_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Device *dst_device;
  PJRT_Buffer *dst_buffer; /* out */
} PJRT_Buffer_CopyToDevice_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Event *event; /* out; the caller's */
} PJRT_Buffer_ReadyEvent_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_Buffer *buffer;
  void *device_memory_ptr; /* out */
} PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args;

/* ---- topologies: compiling for devices that are not here ----------------------------------------------------------
 */

typedef struct {
  PJRT_HEAD;
  const char *topology_name;
  size_t topology_name_size;
  const PJRT_NamedValue *create_options;
  size_t num_options;
  PJRT_TopologyDescription *topology; /* out */
} PJRT_TopologyDescription_Create_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_TopologyDescription *topology;
} PJRT_TopologyDescription_Destroy_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_TopologyDescription *topology;
  const char *platform_name; /* out */
  size_t platform_name_size;
} PJRT_TopologyDescription_PlatformName_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_TopologyDescription *topology;
  const char *platform_version; /* out */
  size_t platform_version_size;
} PJRT_TopologyDescription_PlatformVersion_Args;

typedef struct {
  PJRT_HEAD;
  PJRT_TopologyDescription *topology;
  PJRT_DeviceDescription *const *descriptions; /* out; lives as long as the topology */
  size_t num_descriptions;
} PJRT_TopologyDescription_GetDeviceDescriptions_Args;

typedef struct {
  PJRT_HEAD;
  const PJRT_TopologyDescription *topology;
  const PJRT_Program *program;
  const char *compile_options; /* serialized CompileOptionsProto */
  size_t compile_options_size;
  PJRT_Client *client;         /* may be NULL */
  PJRT_Executable *executable; /* out */
} PJRT_Compile_Args;

/* ---- the calls -------------------------------------------------------------------------------------------------- */

/* X(slot, name, last field of its args, 1 if we cannot do without it) */
#define PJRT_CALLS(X)                                                        \
  X(2, PJRT_Error_GetCode, code, 1)                                          \
  X(3, PJRT_Plugin_Initialize, ext, 1)                                       \
  X(4, PJRT_Plugin_Attributes, num_attributes, 0)                            \
  X(5, PJRT_Event_Destroy, event, 1)                                         \
  X(6, PJRT_Event_IsReady, is_ready, 1)                                      \
  X(8, PJRT_Event_Await, event, 1)                                           \
  X(9, PJRT_Event_OnReady, user_arg, 1)                                      \
  X(10, PJRT_Client_Create, kv_try_get_user_arg, 1)                          \
  X(11, PJRT_Client_Destroy, client, 1)                                      \
  X(12, PJRT_Client_PlatformName, platform_name_size, 1)                     \
  X(14, PJRT_Client_PlatformVersion, platform_version_size, 0)               \
  X(16, PJRT_Client_AddressableDevices, num_addressable_devices, 1)          \
  X(20, PJRT_Client_Compile, executable, 1)                                  \
  X(22, PJRT_Client_BufferFromHostBuffer, buffer, 1)                         \
  X(23, PJRT_DeviceDescription_Id, id, 0)                                    \
  X(25, PJRT_DeviceDescription_Attributes, attributes, 0)                    \
  X(26, PJRT_DeviceDescription_Kind, device_kind_size, 0)                    \
  X(29, PJRT_Device_GetDescription, device_description, 0)                   \
  X(34, PJRT_Device_MemoryStats, peak_allocated_bytes_is_set, 0)             \
  X(40, PJRT_Executable_Destroy, executable, 1)                              \
  X(44, PJRT_Executable_NumOutputs, num_outputs, 1)                          \
  X(46, PJRT_Executable_GetCostAnalysis, properties, 0)                      \
  X(48, PJRT_Executable_OptimizedProgram, program, 0)                        \
  X(49, PJRT_Executable_Serialize, serialized_executable_deleter, 0)         \
  X(50, PJRT_LoadedExecutable_Destroy, executable, 1)                        \
  X(51, PJRT_LoadedExecutable_GetExecutable, executable, 1)                  \
  X(55, PJRT_LoadedExecutable_Execute, execute_device, 1)                    \
  X(56, PJRT_Executable_DeserializeAndLoad, load_options, 0)                 \
  X(58, PJRT_Buffer_Destroy, buffer, 1)                                      \
  X(60, PJRT_Buffer_Dimensions, num_dims, 1)                                 \
  X(64, PJRT_Buffer_OnDeviceSizeInBytes, on_device_size_in_bytes, 0)         \
  X(69, PJRT_Buffer_CopyToDevice, dst_buffer, 0)                             \
  X(70, PJRT_Buffer_ToHostBuffer, event, 1)                                  \
  X(72, PJRT_Buffer_ReadyEvent, event, 1)                                    \
  X(76, PJRT_Buffer_OpaqueDeviceMemoryDataPointer, device_memory_ptr, 0)     \
  X(82, PJRT_TopologyDescription_Create, topology, 0)                        \
  X(83, PJRT_TopologyDescription_Destroy, topology, 0)                       \
  X(84, PJRT_TopologyDescription_PlatformName, platform_name_size, 0)        \
  X(85, PJRT_TopologyDescription_PlatformVersion, platform_version_size, 0)  \
  X(86, PJRT_TopologyDescription_GetDeviceDescriptions, num_descriptions, 0) \
  X(89, PJRT_Compile, executable, 0)                                         \
  X(96, PJRT_Executable_GetCompiledMemoryStats, peak_unpadded_heap_bytes, 0)

enum { PJRT_SLOT_Error_Destroy = 0, PJRT_SLOT_Error_Message = 1 }; /* the two that return nothing */

/* What struct_size must hold: the end of the last field, without trailing padding. */
#define PJRT_END_OF(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

enum {
#define X(slot, name, last, need) name##_SIZE = PJRT_END_OF(name##_Args, last),
  PJRT_CALLS(X)
#undef X
      PJRT_Error_Destroy_SIZE = PJRT_END_OF(PJRT_Error_Destroy_Args, error),
  PJRT_Error_Message_SIZE = PJRT_END_OF(PJRT_Error_Message_Args, message_size)
};
#endif
