#include <array>

#include "core/base/error.h"
#include "core/io/safetensors.h"

namespace pptrain::io {
namespace {

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};

constexpr std::array dtype_names{
    DtypeName{at::ScalarType::Double, "F64"},
    DtypeName{at::ScalarType::Float, "F32"},
    DtypeName{at::ScalarType::Half, "F16"},
    DtypeName{at::ScalarType::BFloat16, "BF16"},
    DtypeName{at::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    DtypeName{at::ScalarType::Float8_e5m2, "F8_E5M2"},
    DtypeName{at::ScalarType::ComplexFloat, "C64"},
    DtypeName{at::ScalarType::Long, "I64"},
    DtypeName{at::ScalarType::Int, "I32"},
    DtypeName{at::ScalarType::Short, "I16"},
    DtypeName{at::ScalarType::Char, "I8"},
    DtypeName{at::ScalarType::UInt64, "U64"},
    DtypeName{at::ScalarType::UInt32, "U32"},
    DtypeName{at::ScalarType::UInt16, "U16"},
    DtypeName{at::ScalarType::Byte, "U8"},
    DtypeName{at::ScalarType::Bool, "BOOL"},
};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const DtypeName& entry : dtype_names) {
    if (entry.dtype == dtype) return entry.name;
  }
  throw Error(std::string("safetensors has no type for ") + c10::toString(dtype));
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const DtypeName& entry : dtype_names) {
    if (entry.name == name) return entry.dtype;
  }
  throw Error("the type '" + name + "' is not supported");
}

}  // namespace pptrain::io
