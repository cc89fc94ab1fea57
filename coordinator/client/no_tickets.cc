// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/no_tickets.h"

#include <openssl/bio.h>
#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/client/openssl_free.h"

namespace lockstep::coordinator {
namespace {

void FreeText(char* text) { OPENSSL_free(text); }
using Text = std::unique_ptr<char, Free<FreeText>>;
using Conf = std::unique_ptr<CONF, Free<NCONF_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

// Returns what `section` says of `name`; empty: nothing.
std::string Find(const CONF* conf, const std::string& section, const char* name) {
  const char* const found =
      NCONF_get_string(conf, section.empty() ? nullptr : section.c_str(), name);
  return found == nullptr ? "" : found;
}

// The section of the defaults of all TLS contexts; empty: there is none.
std::string DefaultsOf(const CONF* conf) {
  const std::string modules = Find(conf, "", "openssl_conf");
  const std::string tls = modules.empty() ? "" : Find(conf, modules, "ssl_conf");
  return tls.empty() ? "" : Find(conf, tls, "system_default");
}

// The host's configuration with what is added to it. Of the host's modules, which are there
// already, none is begun again.
std::string Configuration() {
  const Text file(CONF_get1_default_config_file());
  const Conf hosts(NCONF_new(nullptr));
  std::string include, defaults;
  if (file != nullptr && hosts != nullptr && NCONF_load(hosts.get(), file.get(), nullptr) == 1) {
    include = absl::StrCat(".include = ", file.get(), "\n");
    defaults = DefaultsOf(hosts.get());
  }
  if (defaults.empty()) defaults = "lockstep_defaults";
  return absl::StrCat(
      "lockstep = lockstep_modules\n", include, "[lockstep_modules]\nssl_conf = lockstep_tls\n",
      "[lockstep_tls]\nsystem_default = ", defaults, "\n", "[", defaults, "]\nNumTickets = 0\n");
}

bool Configure() {
  // The host's own is read once, and not after this.
  OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, nullptr);
  const std::string all = Configuration();
  const Bio text(BIO_new_mem_buf(all.data(), static_cast<int>(all.size())));
  const Conf conf(NCONF_new(nullptr));
  return text != nullptr && conf != nullptr &&
         NCONF_load_bio(conf.get(), text.get(), nullptr) == 1 &&
         CONF_modules_load(conf.get(), "lockstep", 0) == 1;
}

}  // namespace

void GiveNoTickets() {
  static const bool done = [] {
    const bool configured = Configure();
    ERR_clear_error();
    if (!configured) {
      LS_LOG_WARNING << "OpenSSL's configuration is not taken: TLS gives tickets";
    }
    return configured;
  }();
  static_cast<void>(done);
}

}  // namespace lockstep::coordinator
