#include "runtime/secrets.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

TEST(Secrets, OrdinaryCommandsStay) {
  for (const std::string word : {"--epochs=3", "--lr=1e-3", "train.py", "--max-tokens=512", "--pad_token_id=0", "--tokenizer=gpt2", "--keyboard=us", "https://host/path?x=1", "a=b",
                                 "--passes=3", "trainer.max_steps=10", "--bypass=1", "C:\\x", "", "-", "--", "--monkey=1"})
    EXPECT_EQ(masked_command({word}), word);
  EXPECT_EQ(masked_command({"python", "train.py", "--epochs", "3"}), "python train.py --epochs 3");
}

TEST(Secrets, OptionsAndTheirValues) {
  EXPECT_EQ(masked_command({"x", "--token=hunter2"}), "x --token=***");
  EXPECT_EQ(masked_command({"x", "--hf-token", "hunter2", "--epochs", "3"}), "x --hf-token *** --epochs 3");
  EXPECT_EQ(masked_command({"x", "--use-auth-token", "--epochs", "3"}), "x --use-auth-token --epochs 3");
  EXPECT_EQ(masked_command({"x", "--password=a b;c"}), "x --password=***");
  for (const std::string name : {"--secret", "--password", "--passwd", "--api-key", "--api_key", "--apikey", "--wandbApiKey", "--db-password", "--key", "--access-token", "--credentials", "-pw"})
    EXPECT_EQ(masked_command({name, "hunter2"}), name + " ***") << name;
}

TEST(Secrets, VariablesAndWhatStandsInPrograms) {
  EXPECT_EQ(masked_command({"env", "HF_TOKEN=hunter2", "AWS_SECRET_ACCESS_KEY=hunter2", "HOME=/root"}), "env HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** HOME=/root");
  EXPECT_EQ(masked_command({"+model.api_key=hunter2"}), "+model.api_key=***");
  EXPECT_EQ(masked_command({R"({"token": "hunter2", "epochs": 3})"}), R"({"token": ***, "epochs": 3})");
  EXPECT_EQ(masked_command({"-c", "os.environ['HF_TOKEN'] = 'hunter2'; train(3)"}), "-c os.environ['HF_TOKEN'] = ***; train(3)");
  EXPECT_EQ(masked_command({"login(token='hunter2', x=1)"}), "login(token=***, x=1)");
}

TEST(Secrets, UrlsHeadersAndKnownKinds) {
  EXPECT_EQ(masked_command({"https://me:hunter2@host/x?a=1"}), "https://***@host/x?a=1");
  EXPECT_EQ(masked_command({"--url=postgres://me:hun@ter2@host:5432/db"}), "--url=postgres://***@host:5432/db");
  EXPECT_EQ(masked_command({"https://host/x?token=hunter2&y=2"}), "https://host/x?token=***&y=2");
  EXPECT_EQ(masked_command({"-H", "Authorization: Bearer hunter2"}), "-H Authorization: ***");
  EXPECT_EQ(masked_command({"say Bearer hunter2 now"}), "say Bearer *** now");
  EXPECT_EQ(masked_command({"hf_abcdefghijklmnopqrstuvwx"}), "***");
  EXPECT_EQ(masked_command({"hf_short"}), "hf_short");
}

}  // namespace
}  // namespace koila
