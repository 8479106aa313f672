#include "core/tokenizer/template.h"

#include <spdlog/fmt/fmt.h>

#include "core/tokenizer/bpe.h"

namespace pptrain::tokenizer {
namespace {

int32_t read_id(const JsonPart& part) {
  return static_cast<int32_t>(part.integer(0, largest_id));
}

// ["[SEP]", 102]
int32_t read_named_id(const JsonPart& part) {
  const std::vector<JsonPart> pair = part.elements();
  if (pair.size() != 2) part.refuse("must be a token and its id");
  return read_id(pair[1]);
}

}  // namespace

Template::Template(const JsonPart& part) {
  add(part);
}

void Template::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "processors"});
    for (const JsonPart& each : part.at("processors").elements()) add(each);
    return;
  }
  if (type == "ByteLevel") return;  // of offsets alone
  if (read) part.refuse("two post-processors that add tokens are not supported");
  if (type == "TemplateProcessing") {
    part.only({"type", "single", "pair", "special_tokens"});
    add_pieces(part);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    part.only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    before.push_back(read_named_id(part.at("cls")));
    after.push_back(read_named_id(part.at("sep")));
  } else {
    part.refuse(fmt::format("the post-processor '{}' is not supported", type));
  }
  read = true;
}

void Template::add_pieces(const JsonPart& part) {
  bool text_seen = false;
  for (const JsonPart& piece : part.at("single").elements()) {
    piece.only({"Sequence", "SpecialToken"});
    if (piece.value().size() != 1) piece.refuse("must have either 'Sequence' or 'SpecialToken'");
    if (const auto sequence = piece.find("Sequence")) {
      if (text_seen || sequence->text("id") != "A") piece.refuse("the text must be there once, as 'A'");
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").text("id");
    const JsonPart token = part.at("special_tokens").at(name.c_str());
    for (const JsonPart& id : token.at("ids").elements()) (text_seen ? after : before).push_back(read_id(id));
  }
  if (!text_seen) part.at("single").refuse("the text is missing");
}

}  // namespace pptrain::tokenizer
