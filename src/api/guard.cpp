#include "api/guard.h"

#include <cstddef>

namespace kda {

ErrorSink begin_report(kda_error* error) {
  if (error != nullptr) {
    if (error->struct_size >= offsetof(kda_error, status) + sizeof(error->status)) error->status = KDA_OK;
    if (error->struct_size >= offsetof(kda_error, message) + sizeof(error->message)) error->message[0] = '\0';
  }
  return ErrorSink{error};
}

}  // namespace kda
