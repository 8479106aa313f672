// What the module that reads Parquet offers to the program, in C's terms: no exception and no C++ type
// crosses.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

// A row's texts, in the order of the columns asked for. Must not throw.
using PptrainParquetRow = void (*)(void* context, const char* const* texts, const size_t* sizes);

struct PptrainParquetApi {
  int version;
  // Opens a file for these columns of texts, or, if `lists` is not 0, of lists too, which are given as JSON.
  // Null if it cannot be read or lacks one, with the reason in `message`, ended by a zero.
  void* (*open)(const char* path, const char* const* columns, int column_count, int lists, char* message,
                size_t message_bytes);
  int64_t (*rows)(void* file);
  // Calls `row` for each of some of the next rows. Their number; 0: there are no more; -1: see message.
  int64_t (*next)(void* file, PptrainParquetRow row, void* context, char* message, size_t message_bytes);
  void (*close)(void* file);
};

constexpr int pptrain_parquet_version = 2;

// The module's one entry point.
const PptrainParquetApi* pptrain_parquet_api();
}
