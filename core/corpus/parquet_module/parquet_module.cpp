// libpptrain_parquet.so: Arrow's reader of Parquet behind the C functions of core/corpus/parquet_api.h.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/corpus/parquet_api.h"

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

// The text in a row of an array of texts, or nothing where it is null.
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

class File {
 public:
  File(const char* path, std::vector<std::string> columns) : columns_(std::move(columns)) {
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
    for (const std::string& column : columns_) indices.push_back(index_of(*data.schema(), column));
    std::ranges::sort(indices);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    std::vector<int> groups(static_cast<size_t>(data.num_row_groups()));
    std::iota(groups.begin(), groups.end(), 0);
    batches_ = take(file_->GetRecordBatchReader(groups, indices));
    for (const std::string& column : columns_) {
      const std::shared_ptr<arrow::Field> field = batches_->schema()->GetFieldByName(column);
      if (!field || !holds_texts(*field->type()))
        throw std::runtime_error("column '" + column + "' is no column of texts, but of " +
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
    std::vector<const char*> texts(columns_.size());
    std::vector<size_t> sizes(columns_.size());
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      for (size_t c = 0; c < columns_.size(); ++c) {
        const std::optional<std::string_view> text = text_at(*arrays[c], i);
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
  // Of the column among the leaves of the file's schema.
  static int index_of(const parquet::SchemaDescriptor& schema, const std::string& column) {
    std::string names;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const std::string name = schema.Column(i)->path()->ToDotString();
      if (name == column) return i;
      if (names.size() < 300) names += (names.empty() ? "" : ", ") + name;
    }
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

void* open_file(const char* path, const char* const* columns, int column_count, char* message,
                size_t message_bytes) {
  try {
    return new File(path, {columns, columns + column_count});
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
