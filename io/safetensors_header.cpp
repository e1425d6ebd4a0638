#include "io/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <set>

namespace kda::io {
namespace {

using Json = nlohmann::json;

// Accepts exactly {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [n...], "data_offsets": [n, n]}}.
// Event by event, so that nesting costs no stack and a key given twice is seen.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(Header* header) : header_(header) {}
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kMetadataStart:
        place_ = Place::kMetadata;
        return true;
      case Place::kTensorStart:
        place_ = Place::kTensor;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kTensor) {
      const HeaderEntry& entry = header_->entries.back();
      for (const auto& [present, key] : {std::pair{entry.has_type, "dtype"}, std::pair{entry.has_shape, "shape"},
                                         std::pair{entry.has_offsets, "data_offsets"}}) {
        if (!present) return fail(where() + "expected the key '" + key + "', found none");
      }
    }
    place_ = Place::kTop;
    return true;
  }
  bool key(std::string& text) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second) return fail("the key '" + printable(text) + "' is given twice");
      if (text == "__metadata__") {
        place_ = Place::kMetadataStart;
      } else {
        header_->entries.emplace_back().name = text;
        place_ = Place::kTensorStart;
      }
      return true;
    }
    if (place_ == Place::kMetadata) {
      metadata_key_ = text;
      if (header_->metadata.count(text) != 0) {
        return fail("the metadata key '" + printable(text) + "' is given twice");
      }
      return true;
    }
    HeaderEntry& entry = header_->entries.back();
    bool* seen = text == "dtype"          ? &entry.has_type
                 : text == "shape"        ? &entry.has_shape
                 : text == "data_offsets" ? &entry.has_offsets
                                          : nullptr;
    if (seen == nullptr) {
      return fail(where() + "expected the keys dtype, shape and data_offsets, found '" + printable(text) + "'");
    }
    if (*seen) return fail(where() + "the key '" + text + "' is given twice");
    *seen = true;
    place_ = text == "dtype" ? Place::kType : text == "shape" ? Place::kShapeStart : Place::kOffsetsStart;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ == Place::kShapeStart) {
      place_ = Place::kShape;
    } else if (place_ == Place::kOffsetsStart) {
      place_ = Place::kOffsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::kOffsets && header_->entries.back().offsets.size() != 2) {
      return fail(where() + "data_offsets: expected 2 numbers, found " +
                  std::to_string(header_->entries.back().offsets.size()));
    }
    place_ = Place::kTensor;
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_->metadata.emplace(metadata_key_, text);
      return true;
    }
    if (place_ == Place::kType) {
      header_->entries.back().type = text;
      place_ = Place::kTensor;
      return true;
    }
    return unexpected("a string");
  }
  bool number_unsigned(uint64_t number) override {
    if (place_ == Place::kShape) {
      HeaderEntry& entry = header_->entries.back();
      if (entry.shape.size() == kMaxTensorRank) {
        return fail(where() + "expected at most " + std::to_string(kMaxTensorRank) + " dimensions, found more");
      }
      entry.shape.push_back(number);
      return true;
    }
    if (place_ == Place::kOffsets) {
      HeaderEntry& entry = header_->entries.back();
      if (entry.offsets.size() == 2) return fail(where() + "data_offsets: expected 2 numbers, found more");
      entry.offsets.push_back(number);
      return true;
    }
    return unexpected("a number");
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return unexpected("a number that is no 64-bit integer"); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("expected JSON, found an error at byte " + std::to_string(position) + " of the header");
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadataStart,
    kMetadata,
    kTensorStart,
    kTensor,
    kType,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kEnd,
  };

  bool in_tensor() const {
    return place_ != Place::kStart && place_ != Place::kTop && place_ != Place::kMetadataStart &&
           place_ != Place::kMetadata && place_ != Place::kEnd;
  }
  std::string where() const { return "tensor '" + printable(header_->entries.back().name) + "': "; }
  const char* expected() const {
    switch (place_) {
      case Place::kStart:
        return "an object";
      case Place::kMetadataStart:
        return "__metadata__: an object";
      case Place::kMetadata:
        return "__metadata__: strings only";
      case Place::kTensorStart:
        return "an object with dtype, shape and data_offsets";
      case Place::kType:
        return "dtype: a string";
      case Place::kShapeStart:
        return "shape: an array";
      case Place::kShape:
        return "shape: numbers from 0 to 2^63-1";
      case Place::kOffsetsStart:
        return "data_offsets: an array";
      case Place::kOffsets:
        return "data_offsets: numbers from 0 to 2^63-1";
      default:
        return "the header's form";
    }
  }
  bool unexpected(const char* found) {
    return fail((in_tensor() ? where() : std::string()) + "expected " + expected() + ", found " + found);
  }
  bool fail(std::string text) {
    if (error_.empty()) error_ = std::move(text);
    return false;
  }

  Header* header_;
  Place place_ = Place::kStart;
  std::string metadata_key_;
  std::set<std::string> names_;
  std::string error_;
};

}  // namespace

Result<Header> parse_header(std::string_view json) {
  if (json.empty() || json.front() != '{') return Error{"expected a header starting with '{', found something else"};
  Header header;
  HeaderReader reader(&header);
  if (Json::sax_parse(json.begin(), json.end(), &reader)) return header;
  return Error{reader.error().empty() ? "expected JSON, found something else" : reader.error()};
}

}  // namespace kda::io
