// libpptrain_parquet.so: Arrow's reader of Parquet behind the C functions of core/text/corpus/parquet_api.h.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/corpus/parquet_api.h"

namespace {

constexpr int64_t rows_at_once = 256;

void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T take(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

// The text in a row of an array of texts, or nothing if it is null.
std::optional<std::string_view> text_at(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return std::nullopt;
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetView(row);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetView(row);
    case arrow::Type::STRING_VIEW:
      return static_cast<const arrow::StringViewArray&>(array).GetView(row);
    default: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return text_at(*coded.dictionary(), coded.GetValueIndex(row));
    }
  }
}

bool holds_texts(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      return true;
    case arrow::Type::DICTIONARY:
      return holds_texts(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr const char* digits = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

void append_json(std::string& out, const arrow::Array& array, int64_t row);

// Appends the values [begin, end) of a list.
void append_list(std::string& out, const arrow::Array& values, int64_t begin, int64_t end) {
  out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append_json(out, values, i);
  }
  out += ']';
}

void append_struct(std::string& out, const arrow::StructArray& array, int64_t row) {
  out += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    if (i > 0) out += ',';
    append_quoted(out, array.struct_type()->field(i)->name());
    out += ':';
    append_json(out, *array.field(i), row);
  }
  out += '}';
}

template <typename Array>
void append_integer(std::string& out, const arrow::Array& array, int64_t row) {
  out += std::to_string(static_cast<const Array&>(array).Value(row));
}

// JSON has no infinity and no NaN.
void append_number(std::string& out, double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out += std::isfinite(value) ? std::string_view(text.data(), end) : std::string_view("\"not finite\"");
}

// {"type": NAME}, which is neither the text, the number nor the list that a key wants, but is something.
void append_other(std::string& out, const arrow::DataType& type) {
  out += "{\"type\":";
  append_quoted(out, type.ToString());
  out += '}';
}

// False if the array holds no integers.
bool append_if_integer(std::string& out, const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::INT8:
      append_integer<arrow::Int8Array>(out, array, row);
      return true;
    case arrow::Type::UINT8:
      append_integer<arrow::UInt8Array>(out, array, row);
      return true;
    case arrow::Type::INT16:
      append_integer<arrow::Int16Array>(out, array, row);
      return true;
    case arrow::Type::UINT16:
      append_integer<arrow::UInt16Array>(out, array, row);
      return true;
    case arrow::Type::INT32:
      append_integer<arrow::Int32Array>(out, array, row);
      return true;
    case arrow::Type::UINT32:
      append_integer<arrow::UInt32Array>(out, array, row);
      return true;
    case arrow::Type::INT64:
      append_integer<arrow::Int64Array>(out, array, row);
      return true;
    case arrow::Type::UINT64:
      append_integer<arrow::UInt64Array>(out, array, row);
      return true;
    default:
      return false;
  }
}

template <typename Lists>
void append_list_of(std::string& out, const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const Lists&>(array);
  append_list(out, *list.values(), list.value_offset(row), list.value_offset(row + 1));
}

// Lists, structs, texts, numbers and truth values; of other types an object that names the type.
void append_json(std::string& out, const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return append_list_of<arrow::ListArray>(out, array, row);
    case arrow::Type::LARGE_LIST:
      return append_list_of<arrow::LargeListArray>(out, array, row);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_list_of<arrow::FixedSizeListArray>(out, array, row);
    case arrow::Type::BOOL:
      out += static_cast<const arrow::BooleanArray&>(array).Value(row) ? "true" : "false";
      return;
    case arrow::Type::FLOAT:
      return append_number(out, static_cast<const arrow::FloatArray&>(array).Value(row));
    case arrow::Type::DOUBLE:
      return append_number(out, static_cast<const arrow::DoubleArray&>(array).Value(row));
    case arrow::Type::STRUCT:
      return append_struct(out, static_cast<const arrow::StructArray&>(array), row);
    default:
      break;
  }
  if (append_if_integer(out, array, row)) return;
  if (!holds_texts(*array.type())) {
    append_other(out, *array.type());
  } else if (const std::optional<std::string_view> text = text_at(array, row)) {
    append_quoted(out, *text);
  } else {
    out += "null";  // of a dictionary
  }
}

class File {
 public:
  File(const char* path, std::vector<std::string> columns, bool lists) : columns_(std::move(columns)) {
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(take(arrow::io::ReadableFile::Open(path))));
    parquet::ArrowReaderProperties properties;
    properties.set_use_threads(false);
    properties.set_pre_buffer(false);
    properties.set_batch_size(rows_at_once);
    builder.properties(properties);
    require(builder.Build(&file_));
    const parquet::FileMetaData& data = *file_->parquet_reader()->metadata();
    rows_ = data.num_rows();
    std::vector<int> indices;
    for (const std::string& column : columns_) add_leaves(*data.schema(), column, indices);
    std::ranges::sort(indices);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    std::vector<int> groups(static_cast<size_t>(data.num_row_groups()));
    std::iota(groups.begin(), groups.end(), 0);
    batches_ = take(file_->GetRecordBatchReader(groups, indices));
    for (const std::string& column : columns_) {
      const std::shared_ptr<arrow::Field> field = batches_->schema()->GetFieldByName(column);
      if (!field || !(holds_texts(*field->type()) || (lists && is_list(*field->type()))))
        throw std::runtime_error("column '" + column + "' is no column of texts" +
                                 (lists ? " or lists" : "") + ", but of " +
                                 (field ? field->type()->ToString() : "something else"));
    }
  }

  int64_t rows() const { return rows_; }

  int64_t next(PptrainParquetRow row, void* context) {
    std::shared_ptr<arrow::RecordBatch> batch;
    do {
      require(batches_->ReadNext(&batch));
      if (!batch) return 0;
    } while (batch->num_rows() == 0);
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    for (const std::string& column : columns_) arrays.push_back(batch->GetColumnByName(column));
    std::vector<std::string> lists(columns_.size());  // of the row, as JSON
    std::vector<const char*> texts(columns_.size());
    std::vector<size_t> sizes(columns_.size());
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      for (size_t c = 0; c < columns_.size(); ++c) {
        std::optional<std::string_view> text;
        if (!is_list(*arrays[c]->type())) {
          text = text_at(*arrays[c], i);
        } else if (!arrays[c]->IsNull(i)) {
          lists[c].clear();
          append_json(lists[c], *arrays[c], i);
          text = lists[c];
        }
        if (!text)
          throw std::runtime_error("row " + std::to_string(read_ + i) + " has no text in column '" +
                                   columns_[c] + "' (null)");
        texts[c] = text->data();
        sizes[c] = text->size();
      }
      row(context, texts.data(), sizes.data());
    }
    read_ += batch->num_rows();
    return batch->num_rows();
  }

 private:
  // Adds the places of the column's leaves among the leaves of the file's schema.
  static void add_leaves(const parquet::SchemaDescriptor& schema, const std::string& column,
                         std::vector<int>& indices) {
    const size_t before = indices.size();
    std::string names, last;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const std::string name = schema.Column(i)->path()->ToDotVector().front();
      if (name == column) indices.push_back(i);
      if (name != last && names.size() < 300) names += (names.empty() ? "" : ", ") + name;
      last = name;
    }
    if (indices.size() == before)
      throw std::runtime_error("there is no column '" + column + "'; its columns are: " + names);
  }

  std::vector<std::string> columns_;
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int64_t rows_ = 0, read_ = 0;
};

void tell(const std::exception& error, char* message, size_t message_bytes) {
  std::strncpy(message, error.what(), message_bytes - 1);
  message[message_bytes - 1] = '\0';
}

void* open_file(const char* path, const char* const* columns, int column_count, int lists, char* message,
                size_t message_bytes) {
  try {
    return new File(path, {columns, columns + column_count}, lists != 0);
  } catch (const std::exception& error) {
    tell(error, message, message_bytes);
    return nullptr;
  }
}

int64_t next_rows(void* file, PptrainParquetRow row, void* context, char* message, size_t message_bytes) {
  try {
    return static_cast<File*>(file)->next(row, context);
  } catch (const std::exception& error) {
    tell(error, message, message_bytes);
    return -1;
  }
}

constexpr PptrainParquetApi api{
    .version = pptrain_parquet_version,
    .open = open_file,
    .rows = [](void* file) { return static_cast<File*>(file)->rows(); },
    .next = next_rows,
    .close = [](void* file) { delete static_cast<File*>(file); },
};

}  // namespace

const PptrainParquetApi* pptrain_parquet_api() {
  return &api;
}
