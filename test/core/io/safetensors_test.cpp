#include "core/io/safetensors.h"
#include "core/io/strict_json.h"

#include <cstring>
#include <random>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/hf_checkpoint.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/write_safetensors.h"

using namespace pptrain;
using namespace pptrain::io;
using pptrain::test::contains_text;
using pptrain::test::write_safetensors;

namespace {

// A file with this header text (unpadded) and this number of data bytes.
std::string raw_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + header + std::string(data_bytes, '\1');
}

std::vector<std::pair<std::string, at::Tensor>> samples() {
  return {{"bytes", at::arange(3, at::kByte)},         {"weights", at::arange(12, at::kFloat).view({3, 4})},
          {"half", at::full({5}, 1.5, at::kBFloat16)}, {"none", at::zeros({0, 7}, at::kFloat)},
          {"scalar", at::full({}, 42, at::kLong)},     {"flag", at::full({2}, true, at::kBool)}};
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace

TEST_CASE("what is written is read") {
  const ScratchFolder folder;
  write_safetensors(folder / "a.safetensors", samples(), {{"format", "pt"}, {"who", "\"we\" \xc3\xa9"}});
  const SafetensorsReader reader(folder / "a.safetensors");
  CHECK(reader.tensors().size() == samples().size());
  for (const auto& [name, tensor] : samples()) {
    const at::Tensor view = reader.view(name);
    INFO(name);
    CHECK(same_bytes(view, tensor));
    CHECK(reinterpret_cast<uintptr_t>(view.const_data_ptr()) % view.element_size() == 0);
    const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    CHECK(checksum_hex(reader.bytes(name)) == checksum_hex(bytes));
  }
  CHECK(reader.metadata() == Metadata{{"format", "pt"}, {"who", "\"we\" \xc3\xa9"}});
  CHECK(reader.contains("none"));
  CHECK_FALSE(reader.contains("None"));
  CHECK_THROWS_WITH(reader.view("None"), contains_text("a.safetensors") && contains_text("'None'"));
}

TEST_CASE("a view outlives its reader and shares the mapping") {
  const ScratchFolder folder;
  write_safetensors(folder / "a", samples());
  at::Tensor first, second;
  {
    const SafetensorsReader reader(folder / "a");
    first = reader.view("weights");
    second = reader.view("weights");
  }
  CHECK(first.const_data_ptr() == second.const_data_ptr());
  CHECK(same_bytes(first, samples()[1].second));
}

TEST_CASE("tensors at odd addresses are copied") {
  const ScratchFolder folder;
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const SafetensorsReader reader(folder.write("odd", raw_file(header, 5)));
  const at::Tensor view = reader.view("f");
  CHECK(reinterpret_cast<uintptr_t>(view.const_data_ptr()) % 4 == 0);
  CHECK(std::memcmp(view.const_data_ptr(), "\1\1\1\1", 4) == 0);
}

TEST_CASE("the writer takes transposed tensors and any order, and says what is wrong") {
  const ScratchFolder folder;
  const at::Tensor matrix = at::arange(6, at::kFloat).view({2, 3});
  SafetensorsWriter writer(folder / "a", {{"x", at::kFloat, {3, 2}}, {"y", at::kLong, {4}}});
  CHECK_THROWS_WITH(writer.write("z", matrix), contains_text("'z'"));
  CHECK_THROWS_WITH(writer.write("x", matrix), contains_text("[2, 3]") && contains_text("[3, 2]"));
  writer.write("x", matrix.t());
  CHECK_THROWS_WITH(writer.write("x", matrix.t()), contains_text("twice"));
  CHECK_THROWS_WITH(writer.finish(), contains_text("'y' was not written"));
  const at::Tensor y = at::arange(4, at::kLong);
  CHECK(writer.write("y", y) ==
        checksum_hex(std::span(static_cast<const std::byte*>(y.const_data_ptr()), y.nbytes())));
  CHECK(writer.finish() == std::filesystem::file_size(folder / "a"));
  CHECK(SafetensorsReader(folder / "a").view("x").equal(matrix.t()));
  CHECK_THROWS_WITH(write_safetensors(folder / "a", samples()), contains_text("File exists"));
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "b", {{"x", at::kFloat, {1}}, {"x", at::kFloat, {1}}}),
                    contains_text("two tensors are named 'x'"));
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "c", {{"__metadata__", at::kFloat, {1}}}),
                    contains_text("__metadata__"));
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "d", {{"x", at::ScalarType::QInt8, {1}}}),
                    contains_text("no type"));
}

TEST_CASE("a file is written again under another writer's header, byte for byte") {
  const ScratchFolder folder;
  const std::string header = R"({ "b":{"shape":[3],"dtype":"U8","data_offsets":[0,3]},
    "__metadata__":{"who":"somebody"}, "a":{"dtype":"F32","data_offsets":[3,11],"shape":[2,1]}}  )";
  const std::string whole = raw_file(header, 0) + "xyz" + std::string("01234567");
  const SafetensorsReader reader(folder.write("theirs", whole));
  CHECK(reader.header_bytes() == 8 + header.size());
  const std::span bytes = std::as_bytes(std::span(whole));
  auto writer = SafetensorsWriter::with_header(folder / "ours", bytes.first(reader.header_bytes()));
  CHECK_THROWS_WITH(writer.finish(), contains_text("was not written"));
  for (const char* name : {"a", "b"}) {
    writer.write_pieces(name, [&](uint64_t begin, std::span<std::byte> piece) {
      std::memcpy(piece.data(), reader.bytes(name).data() + begin, piece.size());
    });
  }
  CHECK(writer.finish() == whole.size());
  CHECK(ScratchFolder::read_file(folder / "ours") == whole);
  CHECK_THROWS_WITH(SafetensorsWriter::with_header(folder / "cut", bytes.first(20)),
                    contains_text("cut off"));
}

TEST_CASE("every type has one name") {
  for (const char* name : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "C64", "I64", "I32", "I16",
                           "I8", "U64", "U32", "U16", "U8", "BOOL"}) {
    CHECK(dtype_name(parse_dtype(name)) == name);
  }
  CHECK_THROWS_AS(parse_dtype("F4"), Error);
}

TEST_CASE("a header that breaks a rule is refused, naming file and tensor") {
  const ScratchFolder folder;
  struct Case {
    std::string what;
    std::string header;
    size_t data;
    std::string message;
  };
  const std::string ok = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::vector<Case> cases{
      {"gap", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "'a' begins at byte 4"},
      {"overlap", "{" + ok + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12,
       "'b' begins at byte 4"},
      {"trailing data", "{" + ok + "}", 9, "9 bytes of data"},
      {"cut data", "{" + ok + "}", 7, "'a' ends at byte 8"},
      {"data without tensors", "{}", 1, "1 bytes of data"},
      {"wrong size", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
       "'a': data_offsets [0, 8]"},
      {"backwards", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "'a': data_offsets"},
      {"overflow", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "overflow"},
      {"overflow before zero",
       R"({"a":{"dtype":"F32","shape":[9223372036854775807,9,0],"data_offsets":[0,0]}})", 0, "overflow"},
      {"overflow after zero",
       R"({"a":{"dtype":"F32","shape":[0,2305843009213693952,8],"data_offsets":[0,0]}})", 0, "overflow"},
      {"huge dim", R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,0]}})", 0,
       "integer"},
      {"negative dim", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8,
       "-2 is not an integer"},
      {"float dim", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8,
       "2.0 is not an integer"},
      {"unknown type", R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8, "'a': the type 'F31'"},
      {"type not text", R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", 8, "'dtype' is missing or"},
      {"no shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8, "'shape' is missing or"},
      {"no offsets", R"({"a":{"dtype":"F32","shape":[2]}})", 8, "'data_offsets' is missing or"},
      {"three offsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8, "not a pair"},
      {"entry not an object", R"({"a":[1]})", 0, "'a': not an object"},
      {"same name twice", "{" + ok + "," + ok + "}", 8, "the key 'a' is there twice"},
      {"same field twice", R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
       "'dtype'"},
      {"metadata not text", R"({"__metadata__":{"k":1},)" + ok + "}", 8, "'k' is not a string"},
      {"metadata no object", R"({"__metadata__":"k",)" + ok + "}", 8, "__metadata__"},
      {"not an object", "[1]", 0, "does not start with '{'"},
      {"leading space", " {}", 0, "does not start with '{'"},
      {"trailing text", "{} x", 0, "not valid JSON"},
      {"text behind a NUL", "{" + ok + "}" + std::string("\0{}", 3), 8, "is NUL"},
      {"NULs as padding", "{" + ok + "}" + std::string(8, '\0'), 8, "is NUL"},
      {"not UTF-8", "{\"\xff\":1}", 0, "not valid JSON"},
      {"deep", R"({"a":[[[[[[]]]]]]})", 0, "nested deeper"},
      {"empty header", "", 0, "does not start with '{'"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    const auto path = folder.write("bad.safetensors", raw_file(c.header, c.data));
    CHECK_THROWS_WITH(SafetensorsReader(path), contains_text("bad.safetensors") && contains_text(c.message));
  }
  CHECK(SafetensorsReader(folder.write("ok", raw_file("{" + ok + "   }  \n", 8))).contains("a"));
  CHECK(SafetensorsReader(folder.write("none", raw_file("{}", 0))).tensors().empty());
}

TEST_CASE("a file that is too short, or promises too much, is refused") {
  const ScratchFolder folder;
  for (const std::string& bytes : {std::string(), std::string("1234567")}) {
    CHECK_THROWS_WITH(SafetensorsReader(folder.write("a", bytes)), contains_text("too short"));
  }
  const auto with_length = [&](uint64_t length) {
    return folder.write("a", std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
  };
  CHECK_THROWS_WITH(SafetensorsReader(with_length(3)), contains_text("cut off"));
  CHECK_THROWS_WITH(SafetensorsReader(with_length(100'000'000)), contains_text("cut off"));
  CHECK_THROWS_WITH(SafetensorsReader(with_length(100'000'001)), contains_text("longer than"));
  CHECK_THROWS_WITH(SafetensorsReader(with_length(~uint64_t{0})), contains_text("longer than"));
  CHECK(SafetensorsReader(with_length(2)).tensors().empty());
}

// Damaged headers either throw Error or still describe tensors that lie inside the file.
TEST_CASE("no damage to a header leads outside the file") {
  const ScratchFolder folder;
  write_safetensors(folder / "good", samples(), {{"k", "v"}});
  const std::string good = ScratchFolder::read_file(folder / "good");
  std::mt19937 random(1);
  const auto draw = [&](size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random); };
  int refused = 0, accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bad = good;
    const size_t changes = 1 + draw(3);
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = draw(bad.size());
      switch (draw(4)) {
        case 0:
          bad[at] = static_cast<char>(bad[at] ^ (1 << draw(8)));
          break;
        case 1:
          bad[at] = "0123456789\",:{}[]"[draw(17)];
          break;
        case 2:
          bad.resize(1 + at);
          break;
        default:
          bad.insert(at, 1, static_cast<char>(draw(256)));
      }
    }
    const auto path = folder.write("bad", bad);
    try {
      const SafetensorsReader reader(path);
      uint64_t bytes = 0;
      for (const TensorSpec& spec : reader.tensors()) {
        const at::Tensor view = reader.view(spec.name);
        bytes += view.nbytes();
        checksum_hex(reader.bytes(spec.name));  // touches every byte
      }
      REQUIRE(bytes < bad.size());
      ++accepted;
    } catch (const Error& error) {
      REQUIRE_THAT(error.what(), contains_text("bad"));
      ++refused;
    }
  }
  CHECK(refused > 1000);
  CHECK(accepted > 100);  // changes to the data, to names, to metadata
}

TEST_CASE("a file that git-LFS has not fetched is called so") {
  const ScratchFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2c"
      "a24d17e2393\nsize 4943162336\n";
  folder.write("model.safetensors", pointer);
  CHECK_THROWS_WITH(HfCheckpoint(folder.path()),
                    contains_text("model.safetensors") &&
                        contains_text("is a git-LFS pointer, not the file itself") &&
                        contains_text("git lfs pull"));
  CHECK_THROWS_WITH(parse_strict_json(pointer, "'tokenizer.json'"),
                    contains_text("'tokenizer.json' is a git-LFS pointer"));
}

TEST_CASE("a Hugging Face folder with one file") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(HfCheckpoint(folder.path()), contains_text("neither model.safetensors"));
  write_safetensors(folder / "model.safetensors", samples());
  const HfCheckpoint checkpoint(folder.path());
  CHECK(checkpoint.names() == std::vector<std::string>{"bytes", "flag", "half", "none", "scalar", "weights"});
  CHECK(same_bytes(checkpoint.tensor("weights"), samples()[1].second));
  CHECK(checkpoint.spec("weights").shape == std::vector<int64_t>{3, 4});
  CHECK_THROWS_WITH(checkpoint.tensor("w"), contains_text("no tensor 'w'"));
}

TEST_CASE("a Hugging Face folder with shards") {
  const ScratchFolder folder;
  write_safetensors(folder / "model-1.safetensors", {{"a", at::full({2}, 1.0)}});
  write_safetensors(folder / "model-2.safetensors", {{"b", at::full({2}, 2.0)}, {"c", at::full({2}, 3.0)}});
  const auto index = [&](const std::string& weight_map) {
    folder.write("model.safetensors.index.json",
                 R"({"metadata": {"total_size": 24}, "weight_map": )" + weight_map + "}");
  };
  index(R"({"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"})");
  HfCheckpoint opened(folder.path());
  const HfCheckpoint checkpoint = std::move(opened);
  CHECK(checkpoint.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(checkpoint.tensor("c").equal(at::full({2}, 3.0)));
  CHECK_FALSE(checkpoint.contains("d"));

  const auto refused = [&](const std::string& weight_map, const std::string& message) {
    index(weight_map);
    CHECK_THROWS_WITH(HfCheckpoint(folder.path()), contains_text("index.json") && contains_text(message));
  };
  refused(R"({"a": "model-3.safetensors", "b": "model-2.safetensors", "d": "model-4.safetensors"})",
          "2 of 3 shards are missing: model-3.safetensors, model-4.safetensors; is the download complete?");
  refused(R"({"b": "model-1.safetensors"})", "'b' is not in its shard 'model-1.safetensors'");
  refused(R"({"a": "../model-1.safetensors"})", "leads out of the folder");
  refused(R"({"a": "x/../../model-1.safetensors"})", "leads out of the folder");
  refused("{\"a\": \"" + (folder / "model-1.safetensors").string() + "\"}", "leads out of the folder");
  refused(R"({"a": ""})", "leads out of the folder");
  refused(R"({"a": 1})", "not a string");
  refused(R"({"a": "model-1.safetensors", "a": "model-2.safetensors"})", "'a' is there twice");
  refused(R"(["a"])", "weight_map");
  index(R"({"a": "model-1.safetensors", "b": "model-2.safetensors"})");
  CHECK(HfCheckpoint(folder.path()).contains("c"));  // in a shard, and not in the index
  std::filesystem::remove(folder / "model-1.safetensors");
  write_safetensors(folder / "model-1.safetensors", {{"a", at::full({2}, 1.0)}, {"c", at::full({2}, 4.0)}});
  CHECK_THROWS_WITH(HfCheckpoint(folder.path()),
                    contains_text("'c' is in '") && contains_text("model-2.safetensors"));
  folder.write("model-1.safetensors", "short");
  index(R"({"a": "model-1.safetensors"})");
  CHECK_THROWS_WITH(HfCheckpoint(folder.path()),
                    contains_text("model-1.safetensors") && contains_text("too short"));
}
