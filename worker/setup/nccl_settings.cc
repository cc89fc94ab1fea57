// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/nccl_settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace lockstep::worker {
namespace {

using google::protobuf::FieldDescriptor;

// Returns what is not a variable of NCCL's.
bool IsOwn(const std::string& name) {
  return name == "use" || name == "order" || name == "symmetric_memory" ||
         name == "multi_rank_gpu" || name == "env";
}

std::string ValueOf(const Nccl& nccl, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *nccl.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(nccl, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(nccl, &field) ? "1" : "0";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(nccl, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(nccl, &field));
    default:
      LS_CHECK(false) << field.full_name() << " has a type that is not expected here";
      return "";
  }
}

// A port that is free now; 0: none could be had.
int FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> NcclVariables(const Nccl& nccl, bool shared_gpu) {
  std::vector<std::pair<std::string, std::string>> variables;
  const google::protobuf::Descriptor& type = *Nccl::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (IsOwn(field.name()) || !nccl.GetReflection()->HasField(nccl, &field)) continue;
    variables.emplace_back(absl::StrCat("NCCL_", absl::AsciiStrToUpper(field.name())),
                           ValueOf(nccl, field));
  }
  if (shared_gpu && MayShareGpu(nccl)) variables.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  const std::map<std::string, std::string> sorted(nccl.env().begin(), nccl.env().end());
  variables.insert(variables.end(), sorted.begin(), sorted.end());
  return variables;
}

bool MayShareGpu(const Nccl& nccl) { return !nccl.has_multi_rank_gpu() || nccl.multi_rank_gpu(); }

void SetNcclEnvironment(const Nccl& nccl, bool shared_gpu) {
  for (const auto& [name, value] : NcclVariables(nccl, shared_gpu)) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  // Without one, NCCL takes the same port in every job of the host.
  const int port = std::getenv("NCCL_RAS_ADDR") == nullptr ? FreePort() : 0;
  if (port > 0) ::setenv("NCCL_RAS_ADDR", absl::StrCat("localhost:", port).c_str(), 1);
}

}  // namespace lockstep::worker
