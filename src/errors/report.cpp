// The error catalogue: names and texts of every status, and the report of one refusal.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "core/status.h"
#include "core/text.h"

namespace kda {
namespace {

struct CatalogueEntry {
  Status status;
  const char* name;
  const char* code;
  const char* message;
  const char* way_out;
};

constexpr CatalogueEntry kCatalogue[] = {
    {KDA_OK, "KDA_OK", "KDA-0000", "success", ""},
#define KDA_ERROR(name, code, message, way_out) {name, #name, code, message, way_out},
#include "errors/catalogue.inc"
#undef KDA_ERROR
};

constexpr CatalogueEntry kUnknown = {-1, "KDA_E_UNKNOWN", "KDA-????", "a status that this version does not know", ""};

const CatalogueEntry& entry_of(Status status) {
  const auto* found = std::lower_bound(std::begin(kCatalogue), std::end(kCatalogue), status,
                                       [](const CatalogueEntry& entry, Status s) { return entry.status < s; });
  return found != std::end(kCatalogue) && found->status == status ? *found : kUnknown;
}

// Writes into a field only if the caller's kda_error is new enough to have it.
#define KDA_FIELD_FITS(error, field) ((error).struct_size >= offsetof(kda_error, field) + sizeof(kda_error::field))

template <size_t kCapacity>
[[gnu::format(printf, 2, 3)]] void set_text(char (&field)[kCapacity], const char* format, ...) {
  field[0] = '\0';
  va_list arguments;
  va_start(arguments, format);
  append_text(field, kCapacity, format, arguments);
  va_end(arguments);
}

}  // namespace

Status ErrorSink::fail(Status code, const char* asked, const char* supported, const char* way_out) const {
  if (error == nullptr) return code;
  const CatalogueEntry& entry = entry_of(code);
  if (way_out == nullptr) way_out = entry.way_out;
  if (KDA_FIELD_FITS(*error, status)) error->status = code;
  if (KDA_FIELD_FITS(*error, asked)) set_text(error->asked, "%s", asked);
  if (KDA_FIELD_FITS(*error, supported)) set_text(error->supported, "%s", supported);
  if (KDA_FIELD_FITS(*error, way_out)) set_text(error->way_out, "%s", way_out);
  if (KDA_FIELD_FITS(*error, message)) {
    set_text(error->message, "%s: %s. Asked: %s. Supported: %s. Way out: %s.", entry.code, entry.message, asked,
             supported, way_out);
  }
  return code;
}

Status ErrorSink::failf(Status code, const char* asked_format, const char* supported, ...) const {
  if (error == nullptr) return code;
  FixedText<sizeof(kda_error::asked)> asked;
  va_list arguments;
  va_start(arguments, supported);
  asked.append(asked_format, arguments);
  va_end(arguments);
  return fail(code, asked, supported);
}

}  // namespace kda

extern "C" {

KDA_API const char* kda_status_name(kda_status status) { return kda::entry_of(status).name; }
KDA_API const char* kda_status_code(kda_status status) { return kda::entry_of(status).code; }
KDA_API const char* kda_status_message(kda_status status) { return kda::entry_of(status).message; }

}  // extern "C"
