// SPDX-License-Identifier: Apache-2.0
#include "coordinator/flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

absl::StatusOr<Flags> Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "coordinator");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseFlags(static_cast<int>(argv.size()), argv.data());
}

TEST(FlagsTest, ValuesComeWithAnEqualsSignOrAfterTheName) {
  const auto flags = Parse({"--listen", "unix:/a", "--token_file=t", "--plaintext", "--local-users",
                            "--tls-of-token", "--admit-without-certificate", "--ready-fd=3",
                            "--state-dir", "s", "--fair-share-half-life=2h", "--quota",
                            "ann:slots=4", "--nodes-by", "command", "--log-memory=64MiB"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->server.listen, "unix:/a");
  EXPECT_EQ(flags->token_file, "t");
  EXPECT_TRUE(flags->server.plaintext);
  EXPECT_TRUE(flags->server.local_users);
  EXPECT_TRUE(flags->tls_of_token);
  EXPECT_TRUE(flags->admit_without_certificate);
  EXPECT_EQ(flags->ready_fd, 3);
  EXPECT_EQ(flags->store.state.folder, "s");
  EXPECT_EQ(flags->server.limits.fair_share_half_life, absl::Hours(2));
  EXPECT_EQ(flags->server.limits.quotas.at("ann").slots, 4);
  EXPECT_EQ(flags->server.limits.nodes_by, NodesBy::kSameCommand);
  EXPECT_EQ(flags->server.limits.log_memory, size_t{64} << 20);
  EXPECT_FALSE(flags->parent_death);
}

TEST(FlagsTest, TheDeathOfAParentMayBeThatOfANamedOne) {
  const auto whoever = Parse({"--parent-death", "--plaintext"});
  ASSERT_TRUE(whoever.ok()) << whoever.status();
  EXPECT_TRUE(whoever->parent_death);
  EXPECT_EQ(whoever->parent, 0);
  const auto named = Parse({"--parent-death=7"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_TRUE(named->parent_death);
  EXPECT_EQ(named->parent, 7);
}

TEST(FlagsTest, AWrongFlagIsNamed) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {
      {{"--lisen=x"}, "unknown flag --lisen"},
      {{"serve"}, "unexpected argument 'serve'"},
      {{"--listen"}, "--listen needs a value"},
      {{"--listen=:7070"}, "--listen: ':7070' is not 'unix:/path'"},
      {{"--listen", "0.0.0.0"}, "--listen: '0.0.0.0' is not"},
      {{"--listen=127.0.0.1:99999"}, "'127.0.0.1:99999' is not"},
      {{"--listen=::1:7070"}, "an IPv6 address stands in brackets"},
      {{"--listen=unix:"}, "a socket's name has 1 to"},
      {{"--store"}, "--store needs a value"},
      {{"--state-dir=~/x"}, "--state-dir has '~/x': the shell expands '~' behind a space, not"},
      {{"--token-file=~ann"}, "not behind '='; './~ann' is a folder of that name"},
      {{"--store-ca=~/x"}, "--store-ca has '~/x'"},
      {{"--store-cert=~/x"}, "--store-cert has '~/x'"},
      {{"--store-key=~/x"}, "--store-key has '~/x'"},
      {{"--store-password-file=~/x"}, "--store-password-file has '~/x'"},
      {{"--plaintext=yes"}, "--plaintext takes no value"},
      {{"--store-plaintext=yes"}, "--store-plaintext takes no value"},
      {{"--ready-fd=x"}, "--ready-fd needs a number, not 'x'"},
      {{"--parent-death="}, "--parent-death needs a number, not ''"},
      {{"--log-level=loud"}, "--log-level is debug, info, warning or error, not 'loud'"},
      {{"--nodes-by=bus"}, "--nodes-by is join, command or nobody, not 'bus'"},
      {{"--quota=ann"}, "--quota is such as"},
      {{"--log-memory=much"}, "--log-memory: "},
      {{"--log-memory=0"}, "--log-memory is at least 1MiB, not '0'"},
      {{"--fair-share-half-life=x"}, "--fair-share-half-life: "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(std::string(Parse(c.arguments).status().message()), testing::HasSubstr(c.said));
  }
  // None of these is a path that the shell left as it was.
  for (const std::vector<std::string>& good : {std::vector<std::string>{"--state-dir=./~/x"},
                                               {"--state-dir", "~/x"},
                                               {"--store-user=~ann"}}) {
    EXPECT_TRUE(Parse(good).ok()) << good[0];
  }
}

absl::Status Store(std::vector<std::string> arguments) {
  const auto flags = Parse(std::move(arguments));
  return flags.ok() ? EtcdOptionsOf(flags->store).status() : flags.status();
}

TEST(FlagsTest, AJournalGoesToOtherMachinesEncryptedUnlessItIsSaidOtherwise) {
  for (const char* other : {"--store=etcd://e1:2379", "--store=etcd://127.0.0.1:1,10.0.0.1:1",
                            "--store=etcd://127.evil:1", "--store=etcd://[fd00::1]:1"}) {
    const absl::Status refused = Store({other});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << other << refused;
    EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("write --store etcds://"));
    EXPECT_TRUE(Store({other, "--store-plaintext"}).ok()) << other;
  }
  for (const char* good : {"--store=etcds://e1:2379", "--store=etcd://127.0.0.1:1,[::1]:1",
                           "--store=etcd://localhost:2379"}) {
    EXPECT_TRUE(Store({good}).ok()) << good;
  }
}

TEST(FlagsTest, AFileWithEtcdsPasswordIsItsOwnersAlone) {
  const std::string file = absl::StrCat(testing::TempDir(), "/password-", ::getpid());
  std::ofstream(file) << "secret\n";
  const std::vector<std::string> flags = {"--store=etcd://localhost:1", "--store-user=ann",
                                          absl::StrCat("--store-password-file=", file)};
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  EXPECT_THAT(std::string(Store(flags).message()), testing::HasSubstr("others can read the file"));
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  const auto parsed = Parse(flags);
  ASSERT_TRUE(parsed.ok());
  const auto options = EtcdOptionsOf(parsed->store);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->password, "secret");
  ::unlink(file.c_str());
}

}  // namespace
}  // namespace lockstep::coordinator
