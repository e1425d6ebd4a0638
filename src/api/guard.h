// What every ABI function goes through: errors start empty, and no exception crosses.
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "core/status.h"

namespace kda {

ErrorSink begin_report(kda_error* error);

template <class Body>
Status guarded(kda_error* error, const Body& body) {
  const ErrorSink sink = begin_report(error);
  try {
    return body(sink);
  } catch (const std::bad_alloc&) {
    return sink.fail(KDA_E_OUT_OF_MEMORY, "an allocation failed", "more free memory");
  } catch (const std::exception& e) {
    return sink.fail(KDA_E_INTERNAL, e.what(), "no exception");
  } catch (...) {
    return sink.fail(KDA_E_INTERNAL, "an unknown exception", "no exception");
  }
}

// The buffer protocol of the ABI: at most `capacity` bytes with the NUL; *needed is the full size with it.
inline Status copy_text(const std::string& text, char* buffer, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr || capacity == 0) return KDA_OK;
  const size_t length = text.size() < capacity ? text.size() : capacity - 1;
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
  return KDA_OK;
}

}  // namespace kda
